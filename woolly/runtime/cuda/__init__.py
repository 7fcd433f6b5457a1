"""The CUDA backend: kernels of native/cuda, launched through the driver."""

__all__: list[str] = []
