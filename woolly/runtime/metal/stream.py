"""MetalStream: command buffers of one GPU, committed in order, and their progress.

Launches of a command buffer may run concurrently. A barrier precedes each dependent launch. Metal cannot record
launches that use buffer addresses, so graphs are encoded again on replay. Driver calls run inside an autorelease pool,
because Python threads have none.
"""

from __future__ import annotations

import ctypes as c
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from woolly.errors import DeviceError
from woolly.runtime.gpu.memory import Block
from woolly.runtime.metal.context import MetalContext, Pipeline
from woolly.runtime.metal.libobjc import Range, Size

_SIDE_BY_SIDE = 1  # MTLDispatchTypeConcurrent
_BUFFERS = 1  # MTLBarrierScopeBuffers
_READ_WRITE = 3  # MTLResourceUsage
_FAILED, _DONE = 5, 4  # MTLCommandBufferStatus
_FAULTS = {
    2: "macOS ended work of the GPU that took too long",
    3: "the GPU used an address that is not in its memory",
    8: "the GPU ran out of memory while it computed",
    11: "the GPU was removed",
}


@dataclass(frozen=True)
class _Launch:
    """A recorded kernel launch. `early`: independent of the previous one."""

    pipeline: Pipeline
    arguments: bytes
    grid: tuple[int, int, int]
    early: bool


@dataclass(frozen=True)
class _Sent:
    """A submission in flight."""

    value: int  # timeline value when done
    commands: int
    n_launches: int


class MetalStream:
    """One queue of work, with software timeline values."""

    def __init__(self, shared: MetalContext) -> None:
        self._shared = shared
        self._commands = 0  # the open command buffer
        self._encoder, self._is_copying = 0, False  # encoder of the open command buffer, and whether it is for copies
        self._n_changes = -1  # version of the block list declared to the encoder
        self._piece: list[_Launch] | None = None  # launches being recorded
        self._last = self._done = 0  # timeline values: last submission, last finished
        self._sent: deque[_Sent] = deque()
        self._marks: dict[int, int] = {}  # timeline values by mark
        self._spans: dict[int, tuple[float, float]] = {}  # start and end in seconds of the GPU's clock, by value
        self._numbers = itertools.count(1)

    @property
    def coming(self) -> int:
        """Timeline value of the next submission."""
        return self._last + 1

    @property
    def is_idle(self) -> bool:
        """True if no work is open or in flight."""
        return not self._commands and self._done == self._last

    def is_done(self, value: int) -> bool:
        """True if a timeline value was reached, as of the last poll."""
        return value <= self._done

    def _open(self, copies: bool) -> int:
        """Return the encoder for copies or launches in the open command buffer."""
        driver = self._shared.enter()
        if self._encoder and self._is_copying != copies:
            self._end_encoder()
        if not self._encoder:
            if not self._commands:
                self._commands = driver.send(driver.send(self._shared.queue, "commandBuffer"), "retain")
            if copies:
                encoder = driver.send(self._commands, "blitCommandEncoder")
            else:
                kind = c.c_uint64(_SIDE_BY_SIDE)
                encoder = driver.send(self._commands, "computeCommandEncoderWithDispatchType:", kind)
            if not encoder:
                raise self._shared.fail("the GPU driver accepts no more work")
            self._encoder, self._is_copying, self._n_changes = driver.send(encoder, "retain"), copies, -1
        if not copies and self._n_changes != self._shared.memory.n_changes:
            self._show_memory()
        return self._encoder

    def _show_memory(self) -> None:
        """Mark all blocks as resident, because kernels access memory by address."""
        with self._shared.lock:
            self._n_changes = self._shared.memory.n_changes
            buffers = [block.buffer for block in self._shared.memory.blocks]
        if buffers:
            array = (c.c_void_p * len(buffers))(*buffers)
            arguments = c.cast(array, c.c_void_p), c.c_uint64(len(buffers)), c.c_uint64(_READ_WRITE)
            self._shared.driver.send(self._encoder, "useResources:count:usage:", *arguments, result=None)

    def _end_encoder(self) -> None:
        if self._encoder:
            encoder, self._encoder = self._encoder, 0
            self._shared.driver.send(encoder, "endEncoding", result=None)
            self._shared.driver.send(encoder, "release", result=None)

    def copy(self, source: Block, at: int, to: Block, place: int, n_bytes: int) -> None:
        """Queue a copy. Offsets and size must be multiples of 4."""
        message = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
        ends = c.c_void_p(source.buffer), c.c_uint64(at), c.c_void_p(to.buffer), c.c_uint64(place)
        with self._shared.driver.pool():
            self._shared.driver.send(self._open(copies=True), message, *ends, c.c_uint64(n_bytes), result=None)

    def fill(self, block: Block, at: int, n_bytes: int) -> None:
        """Queue a zero fill. Offset and size must be multiples of 4."""
        arguments = c.c_void_p(block.buffer), Range(at, n_bytes), c.c_uint8(0)
        with self._shared.driver.pool():
            self._shared.driver.send(self._open(copies=True), "fillBuffer:range:value:", *arguments, result=None)

    def launch(self, pipeline: Pipeline, arguments: bytes, grid: Sequence[int], early: bool) -> None:
        """Queue or record a kernel. With `early`, it does not depend on the previous command."""
        one = _Launch(pipeline, arguments, (grid[0], grid[1], grid[2]), early)
        if self._piece is not None:
            self._piece.append(one)
        elif all(grid):
            with self._shared.driver.pool():
                self._encode(one)

    def _encode(self, one: _Launch) -> None:
        encoder, driver = self._open(copies=False), self._shared.driver
        if not one.early:
            driver.send(encoder, "memoryBarrierWithScope:", c.c_uint64(_BUFFERS), result=None)
        driver.send(encoder, "setComputePipelineState:", c.c_void_p(one.pipeline.state), result=None)
        n = len(one.arguments)
        pushed = c.create_string_buffer(one.arguments, n)
        place = c.c_void_p(c.addressof(pushed)), c.c_uint64(n), c.c_uint64(0)
        driver.send(encoder, "setBytes:length:atIndex:", *place, result=None)
        sizes = Size(*one.grid), Size(one.pipeline.threads, 1, 1)
        driver.send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", *sizes, result=None)

    def end_writes(self) -> None:
        """Do nothing, because the writes of earlier encoders are visible to later encoders."""

    def submit(self, n_launches: int) -> float | None:
        """Submit open commands. Return the mean seconds per launch of the latest finished submission, or None."""
        with self._shared.driver.pool():
            if self._commands:
                self._end_encoder()
                commands, self._commands = self._commands, 0
                self._shared.commit(commands)
                self._last += 1
                self._sent.append(_Sent(self._last, commands, n_launches))
            return self._reap()

    def _reap(self) -> float | None:
        """Release finished submissions, and return seconds per launch of the last one. DeviceError if one failed."""
        driver, seconds = self._shared.enter(), None
        while self._sent:
            sent = self._sent[0]
            status = driver.send(sent.commands, "status", result=c.c_uint64)
            if status == _FAILED:
                raise self._fault(driver.send(sent.commands, "error"))
            if status != _DONE:
                break
            first, last = (
                driver.send(sent.commands, name, result=c.c_double) for name in ("GPUStartTime", "GPUEndTime")
            )
            if sent.n_launches:
                seconds = (last - first) / sent.n_launches
            self._spans[sent.value] = first, last
            self._done = sent.value
            self._sent.popleft()
            driver.send(sent.commands, "release", result=None)
        self._forget_spans()
        return seconds

    def _forget_spans(self) -> None:
        """Drop all spans except the last one and those next to a mark."""
        kept = {self._done, *(value + i for value in self._marks.values() for i in range(2))}
        self._spans = {value: span for value, span in self._spans.items() if value in kept}

    def _fault(self, error: int) -> DeviceError:
        driver = self._shared.driver
        code = driver.send(error, "code", result=c.c_int64) if error else 0
        return self._shared.fail(_FAULTS.get(code) or f"the GPU failed: {driver.describe(error)}")

    def wait(self) -> None:
        """Block until all submissions are done."""
        self.reach_value(self._last)

    def reach_value(self, value: int) -> None:
        """Block until a timeline value is reached. macOS aborts work that takes too long."""
        driver = self._shared.enter()
        with driver.pool():
            for sent in tuple(self._sent):
                if sent.value <= value:
                    driver.send(sent.commands, "waitUntilCompleted", result=None)
            self._reap()

    def begin_piece(self) -> None:
        """Start recording launches."""
        self._piece = []

    def end_piece(self, is_last: bool = False) -> list[_Launch]:
        """Return the recorded piece, and start another one unless it is the last."""
        piece, self._piece = self._piece, None if is_last else []
        return piece or []

    def drop_piece(self) -> None:
        """Discard the piece being recorded."""
        self._piece = None

    def replay(self, pieces: Iterable[list[_Launch]], single_submit: bool) -> None:
        """Encode recorded launches and submit each piece separately, because macOS limits the time of a submission."""
        for piece in pieces:
            launches = [one for one in piece if all(one.grid)]
            with self._shared.driver.pool():
                for one in launches:
                    self._encode(one)
            self.submit(len(launches))

    def forget(self, pieces: list[list[_Launch]]) -> None:
        """Do nothing, because a graph is a Python list."""

    def mark(self) -> int:
        """Submit open commands and return the number of a mark. Its time is the start of the next submission."""
        self.submit(0)
        number = next(self._numbers)
        self._marks[number] = self._last
        return number

    def times(self, marks: Sequence[int]) -> list[int]:
        """Return the nanoseconds of work between consecutive marks, and release the marks."""
        values = [self._marks[mark] for mark in marks]
        if values:
            self.reach_value(max(values))
        for mark in marks:
            del self._marks[mark]
        spans = self._spans
        return [round((spans[b][1] - spans[a + 1][0]) * 1e9) if b > a else 0 for a, b in itertools.pairwise(values)]

    def reach(self, mark: int) -> None:
        """Block until the work before a mark is done, and release the mark."""
        self.reach_value(self._marks.pop(mark))

    def close(self) -> None:
        """Close the stream after its work is done."""
        with self._shared.driver.pool():
            self._end_encoder()
            if self._commands:
                self._shared.driver.send(self._commands, "release", result=None)
            for sent in self._sent:
                self._shared.driver.send(sent.commands, "waitUntilCompleted", result=None)
                self._shared.driver.send(sent.commands, "release", result=None)
        self._sent.clear()
        self._commands = 0
