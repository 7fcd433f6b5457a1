"""GpuBackend: base of all GPU backends. Subclasses provide the name and functions that open devices and find levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError
from woolly.runtime.devices import parse_devices
from woolly.runtime.options import Options, check_kv_type

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.gpu.device import Device
    from woolly.runtime.gpu.program import GpuProgram


class GpuBackend:
    """Compiles plans for one GPU. Opens the driver on first use."""

    name: str  # in BACKENDS
    is_gpu = True

    def __init__(self, open: Callable[..., Device], level: Callable[[], str]) -> None:
        """`open` opens the GPU of a number (None: the first). `level` returns the level of the first."""
        self._open = open
        self._level = level

    @property
    def levels(self) -> list[str]:
        """Level of the GPU, or an empty list if there is no usable GPU."""
        try:
            return [self._level()]
        except (DeviceError, RequestError):
            return []

    def is_available(self) -> bool:
        """True if a driver, a supported GPU and kernels for this GPU are available."""
        return bool(self.levels)

    def open(self, number: int | None = None) -> Device:
        """Open the GPU with this number; None: the first."""
        return self._open() if number is None else self._open(number)

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> GpuProgram:
        """Compile a plan and allocate its weights. `load_weights` or the first run uploads them.

        `options.device` names the GPU, by default the first.
        """
        numbers = (None,) if options.device is None else parse_devices(options.device)
        if len(numbers) != 1:
            raise RequestError(f"device is {options.device!r}, but must be a single GPU here", field="device")
        if options.kv_type is not None:
            check_kv_type(options.kv_type, gpu=self.name)  # before a GPU is opened
        return self.compile_on(self.open(*numbers), plan, tensors, options)

    def compile_on(self, device: Device, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> GpuProgram:
        """Compile a plan for an open device, which the program then owns."""
        try:
            # Imported here: not needed on machines without a GPU.
            from woolly.runtime.gpu.program import GpuProgram, RankingProgram

            kind = GpuProgram if device.kernels.ranker is None else RankingProgram
            return kind(device, plan, tensors, options)
        except BaseException:
            device.close()
            raise
