"""The VulkanDevice: memory, copies, launches and recorded launches of one GPU.

Kernels take 64-bit addresses. All arguments of a launch lie in one struct on the device, written when the launch is
first seen; a launch pushes its address, 8 bytes. Recorded launches are command buffers that are submitted again.
"""

from __future__ import annotations

import ctypes as c
import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError, RequestError
from woolly.runtime.gpu.device import Address, Argument, too_large
from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.vulkan import matrices
from woolly.runtime.vulkan.archive import open_archive
from woolly.runtime.vulkan.bandwidth import find_bandwidth
from woolly.runtime.vulkan.context import VulkanContext
from woolly.runtime.vulkan.libvulkan import VulkanLibrary, open_driver
from woolly.runtime.vulkan.physical import Physical, find_physical
from woolly.runtime.vulkan.probe import probe
from woolly.runtime.vulkan.staging import Staging
from woolly.runtime.vulkan.stream import CommandStream
from woolly.runtime.vulkan.structs import BufferCopy

__all__ = ["LEVEL", "VulkanDevice", "find_level", "open_device"]

# One arithmetic: that of the cpu backend, whatever the GPU.
LEVEL = "vulkan"
# Launches of one piece of a recorded list, which has no rate yet: a guess, below 2 s if each takes up to 30 ms.
_PIECE = 64
# Launches of a submission until a rate is known: a guess for GPUs that are ten times slower than that.
_FEW = 8
# Windows ends a submission after 2 s, some drivers of Linux after 10 s; a twentieth leaves room if the rate changes.
_SUBMISSION_S = 0.1
_ARGUMENTS = 1 << 16  # bytes of arguments that are allocated at once: of 500 launches, more than most models have


class VulkanDevice:
    """One GPU and a stream of work on it."""

    def __init__(self, shared: VulkanContext, limit_s: float, is_first: bool = True) -> None:
        self._shared, self._limit_s, self._is_first = shared, limit_s, is_first
        self._numbers = itertools.count(1)
        self._graphs: dict[int, list[Any]] = {}
        self._arguments: dict[int, tuple[Sequence[Argument], Address]] = {}  # by the id of their tuple
        self._room: tuple[Address, int] = (Address(0), 0)  # for arguments of launches to come
        self._stream = CommandStream(shared, limit_s)
        self._staging = Staging(shared, self._stream)
        self._recorded: list[Any] | None = None  # pieces of the list that is recorded
        self._n_open = 0  # launches since the last submission or piece
        self._per_submission = _FEW
        self._freed: deque[Address] = deque()  # that the next `wait` or `allocate` gives back
        self._is_closed = False

    @property
    def name(self) -> str:
        """As the maker calls it."""
        return self._shared.physical.name

    @property
    def level(self) -> str:
        """The same for all: what gives the bits of the cpu backend."""
        return LEVEL

    @property
    def driver(self) -> str:
        """What drives it, and what stands in for arithmetic that is not the CPU's."""
        physical = self._shared.physical
        text = f"{physical.driver}, Vulkan {physical.version}" if physical.driver else f"Vulkan {physical.version}"
        return text if self._shared.variant == "plain" else f"{text}, with f64 in place of fused multiply-adds"

    @property
    def kernels(self) -> Kernels:
        """The emitters of native/gpu."""
        from woolly.runtime.vulkan.ops import KERNELS  # a machine without a GPU need not wait for them

        return KERNELS

    @property
    def architecture(self) -> int:
        """One if there are matrix units that kernels may use, else zero."""
        return int(self._shared.has_matrices)

    @property
    def kernels_for(self) -> int:
        """Zero: kernels are the same for all generations."""
        return 0

    @property
    def n_processors(self) -> int:
        """One: Vulkan does not say, and no emitter asks."""
        return 1

    @property
    def shared_bytes(self) -> int:
        """Most shared memory that a group may have."""
        return self._shared.physical.shared_bytes

    @property
    def physical(self) -> Physical:
        """What it is and has."""
        return self._shared.physical

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of its memory, measured once; None of the CPU in place of a GPU."""
        if not self._shared.knows_bandwidth:
            self._shared.bandwidth, self._shared.knows_bandwidth = find_bandwidth(self), True
        return self._shared.bandwidth

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""
        return self._shared.physical.free_bytes(self._shared.enter())

    def allocate(self, n_bytes: int) -> Address:
        """New memory; RequestError with the figures if there is not enough."""
        self._shared.enter()
        self._release()
        try:
            with self._shared.lock:
                return Address(self._shared.memory.allocate(n_bytes))
        except RequestError as error:
            raise too_large(self, n_bytes, error.code) from None

    def free(self, address: Address) -> None:
        """Has memory given back at the next `wait` or `allocate`: any thread may drop a state, one alone submits."""
        self._freed.append(address)

    def _release(self) -> None:
        """Gives memory back, after the work of all queues that may use it."""
        # Not while launches are recorded: what is open may use the memory, and is submitted later.
        if not self._freed or self._recorded is not None:
            return
        addresses = [self._freed.popleft() for _ in range(len(self._freed))]
        self._submit()
        with self._shared.lock:
            self._shared.call("vkDeviceWaitIdle", self._shared.device)
            for address in addresses:
                self._shared.memory.free(int(address))

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Plain memory: copies go through buffers of the device's own."""
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: Address, data: npt.NDArray[Any]) -> None:
        """Queues a copy of an array, piece by piece through buffers that the GPU reads."""
        self._staging.upload(int(address), data.reshape(-1).view(np.uint8))

    def send(self, address: Address, pinned: npt.NDArray[np.uint8]) -> None:
        """As `upload`."""
        self.upload(address, pinned)

    def download(self, address: Address, out: npt.NDArray[Any]) -> None:
        """Queues a copy into an array; it is there after `wait` or `reach`."""
        self._staging.download(int(address), out)

    def zero(self, address: Address, n_bytes: int) -> None:
        """Queues zeros."""
        if n_bytes:
            with self._shared.lock:
                block, at = self._shared.memory.find(int(address))
            # A multiple of 4 bytes: memory is handed out in pieces of 256.
            size = c.c_uint64(-(-n_bytes // 4) * 4)
            self._stream.record("vkCmdFillBuffer", block.buffer, c.c_uint64(at), size, 0)

    def copy(self, source: Address, to: Address, n_bytes: int) -> None:
        """Queues a copy inside of its memory."""
        with self._shared.lock:
            (a, at), (b, place) = (self._shared.memory.find(int(one)) for one in (source, to))
        self._stream.record("vkCmdCopyBuffer", a.buffer, b.buffer, 1, c.byref(BufferCopy(at, place, n_bytes)))

    def gather(self, kernels: Iterable[str]) -> None:
        """Nothing: the archive has all kernels, and the driver compiles each when it is prepared."""

    def prepare(self, kernel: str, shared: int) -> None:
        """Has the driver compile a kernel."""
        self._shared.pipeline(kernel)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: int,
        shared: int,
        args: Sequence[Argument],
        early: bool = False,
        group: int = 1,
    ) -> None:
        """Queues a kernel, whose threads and shared memory are its own. An early one needs nothing of the last."""
        pipeline = self._shared.pipeline(kernel)
        at, is_written = self._place(args)
        # What is written now is written in the open command buffer: `capture` sees to launches that are recorded.
        waits = not early or (is_written and self._recorded is None)
        self._stream.launch(pipeline, at, (*grid, 1, 1)[:3], not waits)
        self._n_open += 1
        if self._recorded is not None:
            if self._n_open >= _PIECE:
                self._recorded.append(self._stream.end_piece())
                self._n_open = 0
        elif self._n_open >= self._per_submission:
            self._submit()

    def _place(self, args: Sequence[Argument]) -> tuple[Address, bool]:
        """The struct of the arguments on the device, and whether it is written now. Kept, because most come again."""
        kept = self._arguments.get(id(args))
        if kept is not None and kept[0] is args:
            return kept[1], False
        words = "".join("Q" if isinstance(a, Address) else "f" if isinstance(a, float) else "i" for a in args)
        packed = np.frombuffer(struct.pack(f"@{words}0Q", *args), np.uint8)
        at, left = self._room
        if left < packed.nbytes:
            at, left = self.allocate(_ARGUMENTS), _ARGUMENTS
        n_taken = -(-packed.nbytes // 16) * 16
        self._room = at + n_taken, left - n_taken
        self._staging.write(int(at), packed)
        self._arguments[id(args)] = (args, at)
        return at, True

    def _submit(self) -> None:
        """Hands what is open to the GPU; the next submission gets as many launches as take a tenth of a second."""
        if self._recorded is not None:
            return
        n, self._n_open = self._n_open, 0
        if (seconds := self._stream.submit(n)) is not None and seconds > 0:
            self._per_submission = max(1, min(_PIECE, int(_SUBMISSION_S / seconds)))

    def wait(self) -> None:
        """Returns when all queued work is done; DeviceError if it failed, or is not done within the limit."""
        self._submit()
        self._stream.wait()
        self._staging.settle()
        self._release()

    def capture(self, queue: Callable[[], None]) -> int:
        """Records launches as command buffers."""
        self._submit()
        self._recorded = []
        self._stream.begin_piece()
        try:
            queue()
            self._recorded.append(self._stream.end_piece(is_last=True))
        except BaseException:
            self._stream.drop_piece()
            raise
        finally:
            recorded, self._recorded, self._n_open = self._recorded, None, 0
            # Arguments that were first seen here are written before any launch that is submitted later.
            self._stream.end_writes()
        self._submit()
        number = next(self._numbers)
        self._graphs[number] = recorded
        return number

    def replay(self, graph: int) -> None:
        """Queues recorded launches."""
        self._submit()
        self._stream.replay(self._graphs[graph])

    def forget(self, graph: int) -> None:
        """Drops recorded launches."""
        self.wait()
        self._stream.forget(self._graphs.pop(graph))

    def mark(self) -> int:
        """Queues a time stamp."""
        return self._stream.mark()

    def times(self, marks: Sequence[int]) -> list[int]:
        """Nanoseconds between each mark and the next; drops the marks."""
        self._submit()
        return self._stream.times(marks)

    def reach(self, mark: int, is_soon: bool = False) -> None:
        """Returns when the work before a mark is done; drops the mark."""
        self._submit()
        self._stream.reach(mark)
        self._staging.settle()

    def beside(self) -> VulkanDevice:
        """The same device with a stream of its own."""
        return VulkanDevice(self._shared, self._limit_s, is_first=False)

    def close(self) -> None:
        """Ends the stream; the first device gives back all memory, too."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._shared.lost is None:
            with suppress(DeviceError):  # a GPU that is lost here has nothing to give back
                self._release()
            self._stream.close()
            self._staging.close()
        if self._is_first:
            self._shared.close()


def find_level(index: int = 0) -> str:
    """The level of a GPU, without opening it. DeviceError if there is none that `auto` may take.

    The CPU that stands in for a GPU is taken by name alone, because the cpu backend is faster; so is a GPU that shares
    the CPU's memory, as long as nobody has measured that it is not slower.
    """
    open_archive()
    physical = find_physical(open_driver(), index)
    if physical.is_software:
        raise DeviceError(f"Vulkan has no GPU here, only {physical.name}, which is the CPU", code="no_driver")
    if physical.kind == "integrated":
        text = f"{physical.name} shares the memory of the CPU, and is taken by name alone: device='vulkan'"
        raise DeviceError(text, code="no_driver")
    return LEVEL


def open_device(index: int = 0, driver: VulkanLibrary | None = None, limit_s: float = 120.0) -> VulkanDevice:
    """The GPU of that number, after a probe of its arithmetic. DeviceError if it cannot be used.

    Work that is not done after `limit_s` seconds counts as hanging.
    """
    driver = driver or open_driver()
    context = VulkanContext(driver, find_physical(driver, index), open_archive())
    try:
        device = VulkanDevice(context, limit_s)
    except BaseException:
        context.close()
        raise
    try:
        context.variant = probe(device, context)
        # Asked as the rest of the arithmetic is: a driver that is wrong there leaves these products to dots.
        context.has_matrices = (
            context.physical.has_matrices and context.variant == "plain" and matrices.is_exact(device)
        )
    except BaseException:
        device.close()
        raise
    return device
