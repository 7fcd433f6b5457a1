"""Discovery of the NVIDIA GPUs of this machine, without compiling a program."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError
from woolly.runtime.cuda.libcuda import open_driver

if TYPE_CHECKING:
    from woolly.runtime.gpu.gpu_info import Gpu


def find_gpu(number: int = 0, is_named: bool = False) -> Gpu:
    """Return a GPU by number. Raise DeviceError if it is not usable, RequestError if the number does not exist."""
    driver = open_driver()  # fails on most machines, before the rest of the package is imported
    from woolly.runtime.cuda.context import forget_current, memory_bandwidth
    from woolly.runtime.cuda.device import find_level
    from woolly.runtime.gpu.gpu_info import Gpu

    level = find_level(number)
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    # Querying memory needs a context. The primary context is shared with running programs.
    try:
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    except RequestError:
        name = driver.device_name(number)
        raise DeviceError(
            f"{name} is out of memory",
            code="device_memory",
            remedy="end other programs that use it, or use backend='cpu'",
        ) from None
    try:
        driver.call("cuCtxSetCurrent", context)
        driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    finally:
        driver.result("cuCtxSetCurrent", None)
        forget_current()
        driver.result("cuDevicePrimaryCtxRelease_v2", number)
    return Gpu(number, driver.device_name(number), level, free.value, total.value, memory_bandwidth(driver, number))


def count_gpus() -> int:
    """Return the number of visible GPUs, or 0 if the first one is not usable."""
    try:
        driver = open_driver()
        from woolly.runtime.cuda.device import find_level

        find_level()
        return driver.n_devices()
    except (DeviceError, RequestError):
        return 0
