"""CUDA backend: kernels of native/cuda, launched through the driver."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.runtime.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]

__getattr__ = lazy_getattr(__name__, {"backend": "CudaBackend"})
