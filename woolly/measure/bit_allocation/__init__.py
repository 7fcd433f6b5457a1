"""MIXED QUANTIZATION: types for groups of weights with the least KL divergence under a file size."""

__all__: list[str] = []
