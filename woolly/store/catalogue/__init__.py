"""Built-in catalogue: model names with their repositories, and model file formats."""

__all__: list[str] = []
