"""The VulkanBackend: kernels for GPUs of any maker, with the bits of the cpu backend."""

from __future__ import annotations

from collections.abc import Callable

from woolly.runtime.gpu.backend import GpuBackend
from woolly.runtime.gpu.device import Device

__all__ = ["VulkanBackend"]


def _open(number: int = 0) -> Device:
    from woolly.runtime.vulkan.driver import open_device  # few machines need it

    return open_device(number)


def _level() -> str:
    from woolly.runtime.vulkan.archive import open_archive
    from woolly.runtime.vulkan.libvulkan import open_driver

    # Most machines are refused here, before the rest of the room is imported.
    open_archive()
    open_driver()
    from woolly.runtime.vulkan.driver import find_level

    return find_level()


class VulkanBackend(GpuBackend):
    """GPUs by Vulkan, with kernels of native/gpu."""

    name = "vulkan"

    def __init__(self, open: Callable[..., Device] = _open, level: Callable[[], str] = _level) -> None:
        super().__init__(open, level)
