"""MetalBackend: Apple GPUs, bit-identical to the CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from woolly.runtime.gpu.backend import GpuBackend

if TYPE_CHECKING:
    from woolly.runtime.gpu.device import Device


def _open(number: int = 0) -> Device:
    from woolly.runtime.metal.device import open_device  # imported only if used

    return open_device(number)


def _level() -> str:
    from woolly.runtime.metal.libobjc import open_driver

    open_driver()  # fails first on other systems, before further imports
    from woolly.runtime.metal.device import find_level

    return find_level()


class MetalBackend(GpuBackend):
    """Apple GPUs, with kernels of native/gpu."""

    name = "metal"

    def __init__(self, open: Callable[..., Device] = _open, level: Callable[[], str] = _level) -> None:
        super().__init__(open, level)
