"""Metal backend: runs the kernels of native/gpu on Apple GPUs, bit-identical to the CPU backend."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.runtime.metal.backend import MetalBackend

__all__ = ["MetalBackend"]

__getattr__ = lazy_getattr(__name__, {"backend": "MetalBackend"})
