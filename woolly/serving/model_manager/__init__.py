"""Loading, unloading and keep-alive of models."""

__all__: list[str] = []
