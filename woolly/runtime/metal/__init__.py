"""The Metal backend: kernels of native/gpu as Metal's text, with the arithmetic of the cpu backend, on Apple's GPUs."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.runtime.metal.backend import MetalBackend

__all__ = ["MetalBackend"]

__getattr__ = later(__name__, {"backend": "MetalBackend"})
