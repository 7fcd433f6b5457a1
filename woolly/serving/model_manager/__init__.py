"""Which models are loaded, and how they come and go."""

__all__: list[str] = []
