"""Detection of Metal GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError
from woolly.runtime.metal.libobjc import open_driver

if TYPE_CHECKING:
    from woolly.runtime.gpu.gpu_info import Gpu


def find_gpu(number: int = 0, is_named: bool = False) -> Gpu:
    """Return a GPU by number. Raises DeviceError if it cannot be used, RequestError for an unknown number."""
    driver = open_driver()  # fails first on other systems, before further imports
    from woolly.runtime.gpu.gpu_info import Gpu
    from woolly.runtime.metal.context import name_of
    from woolly.runtime.metal.device import LEVEL, find_device, find_level, memory_of

    if not is_named:
        find_level(driver)
    device = find_device(driver, number)
    try:
        return Gpu(number, name_of(driver, device), LEVEL, *memory_of(driver, device), None)
    finally:
        driver.send(device, "release", result=None)


def count_gpus() -> int:
    """Return the number of GPUs that `auto` may use, or 0 if they must be selected explicitly."""
    try:
        driver = open_driver()
        from woolly.runtime.metal.device import find_level

        find_level(driver)
        return 1
    except (DeviceError, RequestError):
        return 0
