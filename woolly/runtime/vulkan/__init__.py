"""Vulkan backend: kernels of native/gpu on GPUs of all vendors, bit-identical to the CPU backend."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.runtime.vulkan.backend import VulkanBackend

__all__ = ["VulkanBackend"]

__getattr__ = lazy_getattr(__name__, {"backend": "VulkanBackend"})
