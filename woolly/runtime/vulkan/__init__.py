"""The Vulkan backend: kernels of native/gpu, with the arithmetic of the cpu backend, on GPUs of any maker."""

from woolly.runtime.vulkan.backend import VulkanBackend

__all__ = ["VulkanBackend"]
