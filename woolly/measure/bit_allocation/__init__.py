"""Mixed quantization: types per group of weights with the least KL divergence at a given file size."""

__all__: list[str] = []
