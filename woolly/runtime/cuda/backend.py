"""CudaBackend: kernels for NVIDIA GPUs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError
from woolly.runtime.gpu.backend import GpuBackend

if TYPE_CHECKING:
    from woolly.runtime.gpu.device import Device

log = logging.getLogger("woolly.runtime")


def _open(number: int = 0) -> Device:
    from woolly.runtime.cuda.device import open_device  # few machines need it

    return open_device(number)


def _level() -> str:
    from woolly.runtime.cuda.libcuda import open_driver

    open_driver()  # fails on most machines, before the rest of the package is imported
    from woolly.runtime.cuda.device import find_level

    return find_level()


class CudaBackend(GpuBackend):
    """NVIDIA GPUs through the CUDA driver API, with the kernels of native/cuda."""

    name = "cuda"

    def __init__(self, open: Callable[..., Device] = _open, level: Callable[[], str] = _level) -> None:
        super().__init__(open, level)

    def is_available(self) -> bool:
        """True if a GPU is usable. If only kernels or a newer driver are missing, log it once."""
        try:
            return bool(self._level())
        except DeviceError as error:
            if error.code in ("no_kernels", "old_driver"):
                _warn(str(error))
        except RequestError:
            pass
        return False


@functools.cache
def _warn(reason: str) -> None:
    log.warning("the NVIDIA GPU is not used: %s", reason)
