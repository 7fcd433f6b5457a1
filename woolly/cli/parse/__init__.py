"""Command line parsing: commands, options, models, prompts, and errors."""

__all__: list[str] = []
