"""What is done once, when a model is opened."""

__all__: list[str] = []
