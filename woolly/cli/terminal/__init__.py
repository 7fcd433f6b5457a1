"""The terminal: what a person sees and types."""

__all__: list[str] = []
