"""Loading of models, adapters, control vectors and draft models."""

__all__: list[str] = []
