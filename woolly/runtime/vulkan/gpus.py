"""Gpus: what GPUs Vulkan knows on this machine, without a program on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError
from woolly.runtime.vulkan.level import LEVEL, find_level
from woolly.runtime.vulkan.libvulkan import open_driver

if TYPE_CHECKING:
    from woolly.runtime.gpu.found import Gpu


def find_gpu(number: int = 0, is_named: bool = False) -> Gpu:
    """The GPU of that number. DeviceError if there is none that can be used, RequestError if none has that number.

    The CPU that stands in for a GPU is found by those alone who name it.
    """
    if not is_named:
        find_level(number)  # most machines are refused here, before the rest of the room is imported
    driver = open_driver()
    from woolly.runtime.gpu.found import Gpu
    from woolly.runtime.vulkan.physical import find_physical

    physical = find_physical(driver, number)
    return Gpu(number, physical.name, LEVEL, *physical.free_bytes(driver), None)


def count_gpus() -> int:
    """GPUs of the kind of the first, such as discrete; 0 if that cannot be used: a slower kind is taken by name."""
    try:
        find_level()
        driver = open_driver()
        from woolly.runtime.vulkan.physical import list_physical

        first, *others = list_physical(driver)
        return 1 + sum(one.kind == first.kind for one in others)
    except (DeviceError, RequestError):
        return 0
