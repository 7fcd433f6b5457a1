"""Vulkan backend: kernels of native/gpu on GPUs of all vendors, bit-identical to the CPU backend."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import later

if TYPE_CHECKING:
    from woolly.runtime.vulkan.backend import VulkanBackend

__all__ = ["VulkanBackend"]

__getattr__ = later(__name__, {"backend": "VulkanBackend"})
