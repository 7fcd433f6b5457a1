"""Detection of Vulkan GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError
from woolly.runtime.vulkan.auto_selection import LEVEL, find_level
from woolly.runtime.vulkan.libvulkan import open_driver

if TYPE_CHECKING:
    from woolly.runtime.gpu.gpu_info import Gpu


def find_gpu(number: int = 0, is_named: bool = False) -> Gpu:
    """Return a GPU by number. Raises DeviceError if it cannot be used, RequestError for an unknown number.

    CPU drivers (llvmpipe) are only accepted with `is_named`.
    """
    if not is_named:
        find_level(number)  # fails first on most machines, before further imports
    driver = open_driver()
    from woolly.runtime.gpu.gpu_info import Gpu
    from woolly.runtime.vulkan.physical_device import find_physical

    physical = find_physical(driver, number)
    return Gpu(number, physical.name, LEVEL, *physical.free_bytes(driver), None)


def count_gpus() -> int:
    """Return the number of GPUs of the first one's kind, such as discrete, or 0 if `auto` may not use it."""
    try:
        find_level()
        driver = open_driver()
        from woolly.runtime.vulkan.physical_device import list_physical

        first, *others = list_physical(driver)
        return 1 + sum(one.kind == first.kind for one in others)
    except (DeviceError, RequestError):
        return 0
