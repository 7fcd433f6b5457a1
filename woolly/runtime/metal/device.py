"""MetalDevice: memory, copies, launches and graphs of an Apple GPU."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable
from contextlib import suppress

from woolly.errors import DeviceError, RequestError
from woolly.runtime.gpu.command_buffer_device import CommandBufferDevice
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.gpu.probe import OWN_HALVES, TINY, device_lost_error, differences, refusal
from woolly.runtime.metal.context import MetalContext, name_of
from woolly.runtime.metal.libobjc import ObjectiveC, open_driver
from woolly.runtime.metal.staging import MetalStaging
from woolly.runtime.metal.stream import MetalStream
from woolly.runtime.vulkan.bandwidth import COPIED, measure_bandwidth
from woolly.runtime.vulkan.kernel_archive import open_archive

LEVEL = "metal"  # one level for all chips: results match the CPU backend


class MetalDevice(CommandBufferDevice):
    """One GPU with one queue of work."""

    def __init__(self, shared: MetalContext, is_first: bool = True) -> None:
        self._shared = shared
        self._queue = MetalStream(shared)
        super().__init__(shared, self._queue, MetalStaging(shared, self._queue), is_first)

    @property
    def name(self) -> str:
        """Product name."""
        return self._shared.name

    @property
    def level(self) -> str:
        """Kernel level, the same for all GPUs because results match the CPU backend."""
        return LEVEL

    @property
    def driver(self) -> str:
        """macOS version, with deviations from CPU arithmetic."""
        text = f"Metal of macOS {self._shared.driver.version}"
        return f"{text}, with zero in place of numbers below 1.2e-38" if self._shared.flushes else text

    @property
    def kernels(self) -> Kernels:
        """Emitters of the kernels in native/gpu."""
        from woolly.runtime.metal.kernels import KERNELS  # not needed on machines without a GPU

        return KERNELS

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory of a workgroup, in bytes."""
        return int(self._shared.enter().send(self._shared.device, "maxThreadgroupMemoryLength", result=c.c_uint64))

    @property
    def bandwidth(self) -> float | None:
        """Memory bandwidth in bytes per second, measured once, or None if there is not enough memory to measure it."""
        if not self._shared.knows_bandwidth:
            with suppress(RequestError):  # a failed measurement must not prevent loading a model
                if self.memory()[0] > 8 * COPIED:
                    self._shared.bandwidth = measure_bandwidth(self, COPIED)
            self._shared.knows_bandwidth = True
        return self._shared.bandwidth

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes of the memory that macOS lets the GPU use."""
        return memory_of(self._shared.enter(), self._shared.device)

    def zero(self, address: Address, n_bytes: int) -> None:
        """Queue filling memory with zeros."""
        if n_bytes:
            with self._shared.lock:
                block, at = self._shared.memory.find(int(address))
            # Round up to 4 bytes; allocations are multiples of 256.
            self._queue.fill(block, at, -(-n_bytes // 4) * 4)

    def copy(self, source: Address, to: Address, n_bytes: int) -> None:
        """Queue a copy within device memory."""
        with self._shared.lock:
            (a, at), (b, place) = (self._shared.memory.find(int(one)) for one in (source, to))
        self._queue.copy(a, at, b, place, n_bytes)

    def precompile(self, kernels: Iterable[str]) -> None:
        """Do nothing, because the archive contains all kernels and `prepare` compiles them."""

    def mark(self) -> int:
        """Submit open commands, and use their end as the timestamp."""
        self._submit()
        return super().mark()

    def new_stream(self) -> MetalDevice:
        """Return a handle of the same device with a separate stream."""
        return MetalDevice(self._shared, is_first=False)


def memory_of(driver: ObjectiveC, device: int) -> tuple[int, int]:
    """Return free and total bytes of the memory that macOS lets a GPU use."""
    total = driver.send(device, "recommendedMaxWorkingSetSize", result=c.c_uint64)
    taken = driver.send(device, "currentAllocatedSize", result=c.c_uint64)
    return max(0, total - taken), total


def find_level(driver: ObjectiveC | None = None) -> str:
    """Return the level of the first GPU without opening it. Raises DeviceError if `auto` may not use the GPU.

    Currently always an error: Apple GPUs must be selected explicitly until measurements show that they are not slower
    than the CPU.
    """
    open_archive()
    driver = driver or open_driver()
    device = find_device(driver, 0)
    name = name_of(driver, device)
    driver.send(device, "release", result=None)
    text = f"{name} shares the memory of the CPU, and is taken by name alone: device='metal'"
    raise DeviceError(text, code="no_driver")


def open_device(index: int = 0, driver: ObjectiveC | None = None) -> MetalDevice:
    """Open a GPU by number and probe its arithmetic. Raises DeviceError if it cannot be used."""
    driver = driver or open_driver()
    context = MetalContext(driver, find_device(driver, index), open_archive())
    device = MetalDevice(context)
    try:
        wrong = differences(device)
        # Metal may flush subnormals; no result of the kernels depends on them.
        context.flushes = TINY in wrong
        if set(wrong) - {TINY, OWN_HALVES}:
            raise refusal(device, wrong)
    except DeviceError as error:
        if context.lost is None:
            device.close()
            raise
        device.abandon()
        raise device_lost_error(context.name, error) from None
    except BaseException:
        device.close()
        raise
    return device


def find_device(driver: ObjectiveC, index: int) -> int:
    """Return a GPU by number, retained. Raises DeviceError if there is no GPU, RequestError for an unknown number."""
    found = driver.devices()
    for i, one in enumerate(found):
        if i != index:
            driver.send(one, "release", result=None)
    if not found:
        raise DeviceError("Metal found no GPU", code="no_driver")
    if index >= len(found):
        known = f"Metal knows {len(found)} GPU{'s' * (len(found) != 1)} here"
        raise RequestError(f"device is 'metal:{index}', and {known}: numbers start at 0", field="device")
    return found[index]
