"""The Metal backend: kernels of native/gpu as Metal's text, with the arithmetic of the cpu backend, on Apple's GPUs."""

from woolly.runtime.metal.backend import MetalBackend

__all__ = ["MetalBackend"]
