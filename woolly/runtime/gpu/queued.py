"""The QueuedDevice: what a GPU does whose driver takes command buffers: Vulkan's and Metal's.

Kernels take 64-bit addresses. A launch pushes its arguments. Recorded launches are submitted again.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError, RequestError
from woolly.runtime.gpu.arguments import PushedArguments
from woolly.runtime.gpu.device import Address, Argument, too_large
from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.gpu.memory import BlockMemory

# Launches of one piece of a recorded list, which has no rate yet: a guess, below 2 s if each takes up to 30 ms.
_PIECE = 64
# Launches of a submission until a rate is known: a guess for GPUs that are ten times slower than that.
_FEW = 8
# Windows ends a submission after 2 s, some drivers of Linux after 10 s; a twentieth leaves room if the rate changes.
_SUBMISSION_S = 0.1


class GpuContext(Protocol):
    """What the queues of one GPU share."""

    @property
    def lock(self) -> Any:
        """Guards the queue, the memory and the pipelines."""

    @property
    def memory(self) -> BlockMemory:
        """The memory of the GPU, in blocks."""

    @property
    def lost(self) -> DeviceError | None:
        """Why the device cannot be used again; None if it can."""

    def enter(self) -> Any:
        """The driver, unless the device is lost."""

    def idle(self) -> None:
        """Returns when all queues have done their work."""

    def pipeline(self, kernel: str) -> Any:
        """The kernel of that name, compiled when it is first asked for."""

    def close(self, is_lost: bool = False) -> None:
        """Gives back all; of a lost device if `is_lost`, which no other thread uses."""


class GpuStream(Protocol):
    """Command buffers of one queue, in order."""

    def launch(self, pipeline: Any, arguments: bytes, grid: Sequence[int], early: bool) -> None:
        """Queues a kernel, or records it. An early one needs nothing that the last command wrote."""

    def submit(self, n_launches: int) -> float | None:
        """Hands what is open to the GPU. Gives the seconds of a launch, of the latest that are done."""

    def wait(self) -> None:
        """Returns when all that was submitted is done."""

    def begin_piece(self) -> None:
        """Has launches recorded from here on."""

    def end_piece(self, is_last: bool = False) -> Any:
        """What was recorded; goes on with another piece unless it is the last."""

    def drop_piece(self) -> None:
        """Forgets what is being recorded."""

    def end_writes(self) -> None:
        """What is open is done before, and seen by, all that is submitted later."""

    def replay(self, pieces: list[Any], single_submit: bool) -> None:
        """Submits recorded launches, each piece by itself unless all are known to take little time."""

    def forget(self, pieces: list[Any]) -> None:
        """Frees recorded launches that are done."""

    def mark(self) -> int:
        """Queues a time stamp; gives its number."""

    def times(self, marks: Sequence[int]) -> list[int]:
        """Nanoseconds between each mark and the next; drops the marks."""

    def reach(self, mark: int) -> None:
        """Returns when the work before a mark is done; drops the mark."""

    def close(self) -> None:
        """Ends the stream after its work."""


class GpuCopies(Protocol):
    """Copies between the host and the GPU, queued in the stream."""

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Writes at most 64 KB, a multiple of 4 bytes, to memory that is fresh."""

    def upload(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Queues a copy; the array may change after the call."""

    def download(self, address: int, out: npt.NDArray[Any]) -> None:
        """Queues a copy; `settle` brings it to the array when it is there."""

    def settle(self) -> None:
        """Brings what the GPU has copied to the arrays."""

    def close(self) -> None:
        """Gives the buffers back. The stream is done."""


class QueuedDevice(ABC):
    """One GPU and a stream of work on it."""

    def __init__(self, shared: GpuContext, stream: GpuStream, staging: GpuCopies, is_first: bool) -> None:
        self._context, self._stream, self._staging, self._is_first = shared, stream, staging, is_first
        self._numbers = itertools.count(1)
        self._graphs: dict[int, list[Any]] = {}
        self._seconds: dict[int, float] = {}  # that each graph took at most, with what was queued before it
        self._replayed: dict[int, float] = {}  # when each was queued since the last mark or `wait`
        self._marked: dict[int, dict[int, float]] = {}  # those before each mark
        self._arguments = PushedArguments(self.allocate, staging.write)
        self._recorded: list[Any] | None = None  # pieces of the list that is recorded
        self._n_open = 0  # launches since the last submission or piece
        self._per_submission = _FEW
        self._freed: deque[Address] = deque()  # that the next `wait` or `allocate` gives back
        self._is_closed = False

    @property
    @abstractmethod
    def name(self) -> str:
        """As the maker calls it."""

    @property
    @abstractmethod
    def level(self) -> str:
        """The same for all GPUs of a kind."""

    @property
    @abstractmethod
    def driver(self) -> str:
        """What drives it, and what stands in for arithmetic that is not the CPU's."""

    @property
    @abstractmethod
    def kernels(self) -> Kernels:
        """The emitters of native/gpu."""

    @property
    @abstractmethod
    def bandwidth(self) -> float | None:
        """Bytes per second of its memory, measured once; None if that is not known."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Most shared memory that a group may have."""

    @property
    def architecture(self) -> int:
        """One if there are matrix units that kernels may use, else zero."""
        return 0

    @property
    def kernels_for(self) -> int:
        """Zero: kernels are the same for all generations."""
        return 0

    @property
    def n_processors(self) -> int:
        """One: drivers do not say, and no emitter asks."""
        return 1

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""

    @abstractmethod
    def zero(self, address: Address, n_bytes: int) -> None:
        """Queues zeros."""

    @abstractmethod
    def copy(self, source: Address, to: Address, n_bytes: int) -> None:
        """Queues a copy inside of its memory."""

    @abstractmethod
    def precompile(self, kernels: Iterable[str]) -> None:
        """Has kernels of these names ready."""

    @abstractmethod
    def beside(self) -> QueuedDevice:
        """The same device with a stream of its own."""

    def allocate(self, n_bytes: int) -> Address:
        """New memory; RequestError with the figures if there is not enough."""
        self._context.enter()
        self._release()
        try:
            with self._context.lock:
                return Address(self._context.memory.allocate(n_bytes))
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
        with self._context.lock:
            self._context.idle()
            for address in addresses:
                self._context.memory.free(int(address))

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

    def prepare(self, kernel: str, shared: int) -> None:
        """Has the driver compile a kernel."""
        self._context.pipeline(kernel)

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
        pipeline = self._context.pipeline(kernel)
        pushed, is_written = self._arguments.of(args)
        # What is written now is written in the open command buffer: `capture` sees to launches that are recorded.
        waits = not early or (is_written and self._recorded is None)
        self._stream.launch(pipeline, pushed, (*grid, 1, 1)[:3], not waits)
        self._n_open += 1
        if self._recorded is not None:
            if self._n_open >= _PIECE:
                self._recorded.append(self._stream.end_piece())
                self._n_open = 0
        elif self._n_open >= self._per_submission:
            self._submit()

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
        self._time(self._replayed)
        self._replayed = {}
        self._staging.settle()
        self._release()

    def _time(self, replayed: dict[int, float]) -> None:
        """Notes how long graphs took that are done."""
        now = time.perf_counter()
        self._seconds |= {graph: now - start for graph, start in replayed.items() if graph in self._graphs}

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
        """Queues recorded launches: at once if they took less than a submission may the last time."""
        self._submit()
        self._replayed[graph] = time.perf_counter()
        self._stream.replay(self._graphs[graph], self._seconds.get(graph, 1.0) < _SUBMISSION_S)

    def forget(self, graph: int) -> None:
        """Drops recorded launches."""
        self.wait()
        self._seconds.pop(graph, None)
        self._stream.forget(self._graphs.pop(graph))

    def mark(self) -> int:
        """Queues a time stamp."""
        number = self._stream.mark()
        self._marked[number], self._replayed = self._replayed, {}
        return number

    def times(self, marks: Sequence[int]) -> list[int]:
        """Nanoseconds between each mark and the next; drops the marks."""
        self._submit()
        for mark in marks:
            self._marked.pop(mark, None)
        return self._stream.times(marks)

    def reach(self, mark: int, is_soon: bool = False) -> None:
        """Returns when the work before a mark is done; drops the mark."""
        self._submit()
        self._stream.reach(mark)
        self._time(self._marked.pop(mark, {}))
        self._staging.settle()

    def close(self) -> None:
        """Ends the stream; the first device gives back all memory, too."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._context.lost is None:
            self._freed += self._arguments.blocks
            with suppress(DeviceError):  # a GPU that is lost here has nothing to give back
                self._release()
            self._stream.close()
            self._staging.close()
        if self._is_first:
            self._context.close()

    def abandon(self) -> None:
        """Gives back all of a device that was lost while it was opened: nobody else uses it."""
        self._is_closed = True
        self._stream.close()
        self._staging.close()
        self._context.close(is_lost=True)
