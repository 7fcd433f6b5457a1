"""The CudaBackend: kernels for NVIDIA GPUs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from woolly.errors import DeviceError, RequestError
from woolly.runtime.cuda.driver import find_level, open_device
from woolly.runtime.gpu.backend import GpuBackend
from woolly.runtime.gpu.device import Device

__all__ = ["CudaBackend"]

log = logging.getLogger("woolly.runtime")


class CudaBackend(GpuBackend):
    """GPUs by NVIDIA's driver, with kernels of native/cuda."""

    name = "cuda"

    def __init__(self, open: Callable[..., Device] = open_device, level: Callable[[], str] = find_level) -> None:
        super().__init__(open, level)

    def is_available(self) -> bool:
        """As for all GPUs. Says why, once, if there is a GPU that only lacks kernels or a newer driver."""
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
