"""THIS COMPUTER: cores, memory, name, and what else runs on it."""

__all__: list[str] = []
