"""The CUDA backend: kernels of native/cuda, launched through the driver."""

from woolly.runtime.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
