"""Terminal input and output."""

__all__: list[str] = []
