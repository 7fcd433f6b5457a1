"""The words of a command line: commands, options, models, prompts, and the errors about them."""

__all__: list[str] = []
