"""QueuedDevice: base of devices with command buffers (Vulkan, Metal).

Kernels take 64-bit buffer addresses and push constants. Graphs are recorded launches that are submitted again.
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

# Launches per piece of a graph (one command buffer): less than 2 s if a launch takes up to 30 ms.
_PIECE = 64
# Launches per submission until their speed is known, estimated for GPUs ten times slower than that.
_FEW = 8
# Target time of a submission. Windows aborts submissions after 2 s, some Linux drivers after 10 s.
_SUBMISSION_S = 0.1


class GpuContext(Protocol):
    """State shared by the queues of a GPU."""

    @property
    def lock(self) -> Any:
        """Lock that guards the queue, the memory and the pipelines."""

    @property
    def memory(self) -> BlockMemory:
        """Memory of the GPU, in blocks."""

    @property
    def lost(self) -> DeviceError | None:
        """Error that made the device unusable, or None while it works."""

    def enter(self) -> Any:
        """Return the driver. Raises DeviceError if the device is lost."""

    def idle(self) -> None:
        """Block until all queues are idle."""

    def pipeline(self, kernel: str) -> Any:
        """Return the pipeline of a kernel, compiled on first use."""

    def close(self, is_lost: bool = False) -> None:
        """Free everything. `is_lost`: also on a lost device, if no other thread uses it."""


class GpuStream(Protocol):
    """Command buffers of one queue, in order."""

    def launch(self, pipeline: Any, arguments: bytes, grid: Sequence[int], early: bool) -> None:
        """Queue or record a kernel. With `early`, it does not depend on the previous command."""

    def submit(self, n_launches: int) -> float | None:
        """Submit open commands. Return the mean seconds per launch of the latest finished submission, or None."""

    def wait(self) -> None:
        """Block until all submissions are done."""

    def begin_piece(self) -> None:
        """Start recording launches."""

    def end_piece(self, is_last: bool = False) -> Any:
        """Return the recorded piece, and start another one unless it is the last."""

    def drop_piece(self) -> None:
        """Discard the piece being recorded."""

    def end_writes(self) -> None:
        """Record a barrier: open commands finish before later submissions and their writes are visible to them."""

    def replay(self, pieces: list[Any], single_submit: bool) -> None:
        """Submit recorded launches, in one submission if `single_submit`, else one per piece."""

    def forget(self, pieces: list[Any]) -> None:
        """Free recorded launches after they are done."""

    def mark(self) -> int:
        """Queue a timestamp and return its number."""

    def times(self, marks: Sequence[int]) -> list[int]:
        """Return the nanoseconds between consecutive marks, and release the marks."""

    def reach(self, mark: int) -> None:
        """Block until the work before a mark is done, and release the mark."""

    def close(self) -> None:
        """Close the stream after its work is done."""


class GpuCopies(Protocol):
    """Copies between the host and the GPU, queued in the stream."""

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write at most 64 KB, a multiple of 4 bytes, to newly allocated memory."""

    def upload(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Queue an upload. The array may change after the call."""

    def download(self, address: int, out: npt.NDArray[Any]) -> None:
        """Queue a download. `settle` copies it to the array once it is done."""

    def settle(self) -> None:
        """Copy finished downloads to their arrays."""

    def close(self) -> None:
        """Free the buffers. The stream must be idle."""


class CommandBufferDevice(ABC):
    """One GPU with one queue of work."""

    def __init__(self, shared: GpuContext, stream: GpuStream, staging: GpuCopies, is_first: bool) -> None:
        self._context, self._stream, self._staging, self._is_first = shared, stream, staging, is_first
        self._numbers = itertools.count(1)
        self._graphs: dict[int, list[Any]] = {}
        self._seconds: dict[int, float] = {}  # upper bound of each graph's time, including work queued before it
        self._replayed: dict[int, float] = {}  # start time of each graph replayed since the last mark or `wait`
        self._marked: dict[int, dict[int, float]] = {}  # start times of graphs before each mark
        self._arguments = PushedArguments(self.allocate, staging.write)
        self._recorded: list[Any] | None = None  # pieces of the graph being recorded
        self._n_open = 0  # launches since the last submission or piece
        self._per_submission = _FEW
        self._freed: deque[Address] = deque()  # memory to free in the next `wait` or `allocate`
        self._is_closed = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Product name."""

    @property
    @abstractmethod
    def level(self) -> str:
        """Kernel level, the same for all GPUs of a backend."""

    @property
    @abstractmethod
    def driver(self) -> str:
        """Driver and version, with deviations from CPU arithmetic."""

    @property
    @abstractmethod
    def kernels(self) -> Kernels:
        """Emitters of the kernels in native/gpu."""

    @property
    @abstractmethod
    def bandwidth(self) -> float | None:
        """Measured memory bandwidth in bytes per second, or None if unknown."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Maximum shared memory of a workgroup, in bytes."""

    @property
    def architecture(self) -> int:
        """1 if the GPU has usable matrix units (cooperative matrices), else 0."""
        return 0

    @property
    def kernels_for(self) -> int:
        """Zero: kernels do not depend on the GPU architecture."""
        return 0

    @property
    def n_processors(self) -> int:
        """One: drivers do not report it, and no emitter uses it."""
        return 1

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Return free and total bytes."""

    @abstractmethod
    def zero(self, address: Address, n_bytes: int) -> None:
        """Queue filling memory with zeros."""

    @abstractmethod
    def copy(self, source: Address, to: Address, n_bytes: int) -> None:
        """Queue a copy within device memory."""

    @abstractmethod
    def precompile(self, kernels: Iterable[str]) -> None:
        """Prepare kernels by name."""

    @abstractmethod
    def new_stream(self) -> CommandBufferDevice:
        """Return a handle of the same device with a separate stream."""

    def allocate(self, n_bytes: int) -> Address:
        """Allocate memory. Raises RequestError with the free and requested bytes if it does not fit."""
        self._context.enter()
        self._release()
        try:
            with self._context.lock:
                return Address(self._context.memory.allocate(n_bytes))
        except RequestError as error:
            raise too_large(self, n_bytes, error.code) from None

    def free(self, address: Address) -> None:
        """Free memory in the next `wait` or `allocate`: any thread may drop a state, but only one submits work."""
        self._freed.append(address)

    def _release(self) -> None:
        """Free pending memory after all queues are idle."""
        # Not while recording: recorded launches may use the memory later.
        if not self._freed or self._recorded is not None:
            return
        addresses = [self._freed.popleft() for _ in range(len(self._freed))]
        self._submit()
        with self._context.lock:
            self._context.idle()
            for address in addresses:
                self._context.memory.free(int(address))

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Return pageable memory: copies go through staging buffers."""
        return np.zeros(n_bytes, np.uint8)

    def upload(self, address: Address, data: npt.NDArray[Any]) -> None:
        """Queue the upload of an array through staging buffers."""
        self._staging.upload(int(address), data.reshape(-1).view(np.uint8))

    def send(self, address: Address, pinned: npt.NDArray[np.uint8]) -> None:
        """Queue an upload, as `upload` does."""
        self.upload(address, pinned)

    def download(self, address: Address, out: npt.NDArray[Any]) -> None:
        """Queue a download into an array, complete after `wait` or `reach`."""
        self._staging.download(int(address), out)

    def prepare(self, kernel: str, shared: int) -> None:
        """Compile the pipeline of a kernel."""
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
        """Queue a kernel. `block` and `shared` are ignored. If `early`, it is independent of the previous command."""
        pipeline = self._context.pipeline(kernel)
        pushed, is_written = self._arguments.of(args)
        # New argument structs are written in the open command buffer; `capture` adds the barrier for recorded launches.
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
        """Submit open commands, and size the next submission to take about 0.1 s."""
        if self._recorded is not None:
            return
        n, self._n_open = self._n_open, 0
        if (seconds := self._stream.submit(n)) is not None and seconds > 0:
            self._per_submission = max(1, min(_PIECE, int(_SUBMISSION_S / seconds)))

    def wait(self) -> None:
        """Block until all queued work is done. Raises DeviceError if it failed or timed out."""
        self._submit()
        self._stream.wait()
        self._time(self._replayed)
        self._replayed = {}
        self._staging.settle()
        self._release()

    def _time(self, replayed: dict[int, float]) -> None:
        """Record the time of finished graphs."""
        now = time.perf_counter()
        self._seconds |= {graph: now - start for graph, start in replayed.items() if graph in self._graphs}

    def capture(self, queue: Callable[[], None]) -> int:
        """Record launches as command buffers and return the number of the graph."""
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
            # Barrier: later launches may read argument structs that were just written.
            self._stream.end_writes()
        self._submit()
        number = next(self._numbers)
        self._graphs[number] = recorded
        return number

    def replay(self, graph: int) -> None:
        """Queue recorded launches, as a single submission if they were short enough the last time."""
        self._submit()
        self._replayed[graph] = time.perf_counter()
        self._stream.replay(self._graphs[graph], self._seconds.get(graph, 1.0) < _SUBMISSION_S)

    def forget(self, graph: int) -> None:
        """Free recorded launches."""
        self.wait()
        self._seconds.pop(graph, None)
        self._stream.forget(self._graphs.pop(graph))

    def mark(self) -> int:
        """Queue a timestamp and return its number."""
        number = self._stream.mark()
        self._marked[number], self._replayed = self._replayed, {}
        return number

    def times(self, marks: Sequence[int]) -> list[int]:
        """Return the nanoseconds between consecutive marks, and release the marks."""
        self._submit()
        for mark in marks:
            self._marked.pop(mark, None)
        return self._stream.times(marks)

    def reach(self, mark: int, is_soon: bool = False) -> None:
        """Block until the work before a mark is done, and release the mark."""
        self._submit()
        self._stream.reach(mark)
        self._time(self._marked.pop(mark, {}))
        self._staging.settle()

    def close(self) -> None:
        """Close the stream. The first device also frees all memory."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._context.lost is None:
            self._freed += self._arguments.blocks
            with suppress(DeviceError):  # nothing to free on a lost GPU
                self._release()
            self._stream.close()
            self._staging.close()
        if self._is_first:
            self._context.close()

    def abandon(self) -> None:
        """Free everything on a device that was lost while it was opened. No other thread uses it yet."""
        self._is_closed = True
        self._stream.close()
        self._staging.close()
        self._context.close(is_lost=True)
