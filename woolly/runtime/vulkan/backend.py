"""VulkanBackend: GPUs of all vendors, bit-identical to the CPU backend."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from woolly.runtime.gpu.backend import GpuBackend
from woolly.runtime.vulkan.auto_selection import find_level

if TYPE_CHECKING:
    from woolly.runtime.gpu.device import Device

log = logging.getLogger("woolly.runtime")


def _open(number: int = 0) -> Device:
    from woolly.runtime.vulkan.device import open_device  # imported only if used

    device = open_device(number)
    if device.physical.is_software:
        _warn(device.name)
    return device


@functools.cache
def _warn(name: str) -> None:
    log.warning("%s runs on the CPU instead of a GPU and is slow: device='cpu' (--device cpu) is faster", name)


class VulkanBackend(GpuBackend):
    """Vulkan GPUs, with kernels of native/gpu."""

    name = "vulkan"

    def __init__(self, open: Callable[..., Device] = _open, level: Callable[[], str] = find_level) -> None:
        super().__init__(open, level)
