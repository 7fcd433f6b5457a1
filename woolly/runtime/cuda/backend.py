"""The CudaBackend: kernels for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Callable

from woolly.runtime.cuda.driver import find_level, open_device
from woolly.runtime.gpu.backend import GpuBackend
from woolly.runtime.gpu.device import Device

__all__ = ["CudaBackend"]


class CudaBackend(GpuBackend):
    """GPUs by NVIDIA's driver, with kernels of native/cuda."""

    name = "cuda"

    def __init__(self, open: Callable[..., Device] = open_device, level: Callable[[], str] = find_level) -> None:
        super().__init__(open, level)
