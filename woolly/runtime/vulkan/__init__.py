"""The Vulkan backend: kernels of native/gpu, with the arithmetic of the cpu backend, on GPUs of any maker."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.runtime.vulkan.backend import VulkanBackend

__all__ = ["VulkanBackend"]

__getattr__ = later(__name__, {"backend": "VulkanBackend"})
