"""The GpuBackend: what all backends of GPUs do. A kind brings its name and the ways to open devices and find levels."""

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
    """Compiles plans for one GPU. Opens the driver when it is first asked for something."""

    name: str  # in BACKENDS
    is_gpu = True

    def __init__(self, open: Callable[..., Device], level: Callable[[], str]) -> None:
        """`open` gives the GPU of a number, or the first; `level` the generation of the first."""
        self._open = open
        self._level = level

    @property
    def levels(self) -> list[str]:
        """The generation of the GPU; none if there is no GPU."""
        try:
            return [self._level()]
        except (DeviceError, RequestError):
            return []

    def is_available(self) -> bool:
        """Whether there are a driver, a GPU that is new enough, and kernels for it."""
        return bool(self.levels)

    def open(self, number: int | None = None) -> Device:
        """The GPU of that number; None: the first."""
        return self._open() if number is None else self._open(number)

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> GpuProgram:
        """Memory of all weights is set aside; they are uploaded by `load_weights` or by the first run.

        `options.device` names the GPU; without it the first is taken.
        """
        numbers = (None,) if options.device is None else parse_devices(options.device)
        if len(numbers) != 1:
            raise RequestError(f"device is {options.device!r}, but one GPU was expected here", field="device")
        if options.kv_type is not None:
            check_kv_type(options.kv_type, gpu=self.name)  # before a GPU is opened for nothing
        return self.compile_on(self.open(*numbers), plan, tensors, options)

    def compile_on(self, device: Device, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> GpuProgram:
        """The program on an open device, which is the program's from here on."""
        try:
            # A machine without a GPU need not wait for them.
            from woolly.runtime.gpu.program import GpuProgram, RankingProgram

            kind = GpuProgram if device.kernels.ranker is None else RankingProgram
            return kind(device, plan, tensors, options)
        except BaseException:
            device.close()
            raise
