"""CommandStream: in-order command buffers of one queue, with a timeline semaphore for progress."""

from __future__ import annotations

import ctypes as c
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from woolly.errors import DeviceError
from woolly.runtime.vulkan.context import COMPUTE, VulkanContext
from woolly.runtime.vulkan.libvulkan import TIMEOUT
from woolly.runtime.vulkan.structs import (
    Barrier,
    BeginInfo,
    CommandInfo,
    PoolInfo,
    QueryInfo,
    SemaphoreInfo,
    SemaphoreType,
    Submit,
    TimelineSubmit,
    WaitInfo,
    reference,
)

_ONCE, _AGAIN = 1, 4  # command buffer usage: one-time submit, or reusable
_RESETTABLE = 2
_TIMELINE = 1
_ALL_STAGES, _LAST_STAGE = 0x10000, 0x2000
_READS_WRITES = 0x8000 | 0x10000
_COPIES, _HOST, _KERNELS = 0x1000, 0x4000, 0x800  # stages
_KERNEL_READS, _KERNEL_WRITES = 0x20, 0x40
_COPY_WRITES, _HOST_READS = 0x1000, 0x2000
_TIMESTAMPS, _WHOLE, _WAIT = 2, 1, 2
_N_STAMPS = 2048  # timestamps: a profile of 1,000 steps and as many submissions; more are not timed


@dataclass(frozen=True)
class _Sent:
    """A submission in flight."""

    value: int  # timeline value when done
    commands: Any  # command buffer to reuse when done; None for a graph
    stamps: tuple[int, int] | None  # before and after
    n_launches: int


class CommandStream:
    """One queue of work. A timeline semaphore counts finished submissions."""

    def __init__(self, shared: VulkanContext, limit_s: float) -> None:
        self._shared, self._limit_s = shared, limit_s
        self._pool, self._semaphore, self._stamps = c.c_void_p(), c.c_void_p(), c.c_void_p()
        self._open: Any = None  # open command buffer, which takes work
        self._piece: Any = None  # command buffer that records launches
        # Whether each command buffer has only launches since the last full barrier.
        self._open_launched, self._piece_launched = False, False
        self._last = 0  # timeline value of the last submission
        self._done = 0
        self._sent: deque[_Sent] = deque()
        self._spare: list[Any] = []
        self._free_stamps = list(range(_N_STAMPS))
        self._first_stamp: int | None = None
        self._marks: dict[int, tuple[int, int]] = {}  # timeline value and timestamp query
        self._numbers = itertools.count(1)
        self._barrier = Barrier(_READS_WRITES, _READS_WRITES)
        self._between_kernels = Barrier(_KERNEL_WRITES, _KERNEL_READS | _KERNEL_WRITES)
        self._for_host = Barrier(_COPY_WRITES, _HOST_READS)
        pool = PoolInfo(_RESETTABLE, shared.physical.family)
        kind = SemaphoreType(_TIMELINE, 0)
        semaphore = SemaphoreInfo(0, next=reference(kind))
        stamps = QueryInfo(0, _TIMESTAMPS, _N_STAMPS, 0)
        try:
            shared.call("vkCreateCommandPool", shared.device, c.byref(pool), None, c.byref(self._pool))
            shared.call("vkCreateSemaphore", shared.device, c.byref(semaphore), None, c.byref(self._semaphore))
            shared.call("vkCreateQueryPool", shared.device, c.byref(stamps), None, c.byref(self._stamps))
        except BaseException:
            if shared.lost is None:
                self.close()
            raise

    @property
    def coming(self) -> int:
        """Timeline value of the next submission."""
        return self._last + 1

    def is_done(self, value: int) -> bool:
        """True if a timeline value was reached, as of the last poll."""
        return value <= self._done

    def record(self, name: str, *arguments: Any) -> None:
        """Queue a command other than a launch."""
        commands = self._commands()
        self._wait_for_all(commands)
        self._shared.driver.result(name, commands, *arguments)
        self._open_launched = False

    def launch(self, pipeline: Any, arguments: bytes, grid: Sequence[int], early: bool) -> None:
        """Queue or record a kernel. With `early`, it does not depend on the previous command."""
        commands = self._piece if self._piece is not None else self._commands()
        driver, layout = self._shared.driver, self._shared.layout
        if not early:
            self._wait_for_launches(commands)
        driver.result("vkCmdBindPipeline", commands, 1, pipeline)
        driver.result("vkCmdPushConstants", commands, layout, COMPUTE, 0, len(arguments), arguments)
        driver.result("vkCmdDispatch", commands, *grid)

    def _wait_for_launches(self, commands: Any) -> None:
        """Barrier before a launch: compute-to-compute if only launches preceded it, else a full one."""
        is_piece = commands is self._piece
        if self._piece_launched if is_piece else self._open_launched:
            between = c.byref(self._between_kernels)
            stages = (_KERNELS, _KERNELS, 0, 1, between, 0, None, 0, None)
            self._shared.driver.result("vkCmdPipelineBarrier", commands, *stages)
            return
        self._wait_for_all(commands)
        if is_piece:
            self._piece_launched = True
        else:
            self._open_launched = True

    def end_writes(self) -> None:
        """Record a barrier: open commands finish before later submissions and their writes are visible to them."""
        if self._open is not None and self._shared.lost is None:
            self._wait_for_all(self._open)

    def show_host(self) -> None:
        """Make the last copy visible to the host once the submission is done."""
        stages = (_COPIES, _HOST, 0, 1, c.byref(self._for_host), 0, None, 0, None)
        self._shared.driver.result("vkCmdPipelineBarrier", self._commands(), *stages)

    def _wait_for_all(self, commands: Any) -> None:
        """Record a full barrier."""
        barrier = c.byref(self._barrier)
        stages = (_ALL_STAGES, _ALL_STAGES, 0, 1, barrier, 0, None, 0, None)
        self._shared.driver.result("vkCmdPipelineBarrier", commands, *stages)

    def _commands(self) -> Any:
        """Return the open command buffer, after beginning one if needed."""
        self._shared.enter()
        if self._open is None:
            self._open, self._open_launched = self._begin(_ONCE), False
            self._first_stamp = self._stamp(self._open)
        return self._open

    def _begin(self, how: int) -> Any:
        commands = self._spare.pop() if self._spare else c.c_void_p()
        if not commands:
            info = CommandInfo(self._pool, 0, 1)
            self._shared.call("vkAllocateCommandBuffers", self._shared.device, c.byref(info), c.byref(commands))
        begin = BeginInfo(how, None)
        self._shared.call("vkBeginCommandBuffer", commands, c.byref(begin))
        return commands

    def _stamp(self, commands: Any) -> int | None:
        """Queue a timestamp query. Return None if timestamps are not supported or no query is free."""
        if not self._shared.physical.timestamp_bits or not self._free_stamps:
            return None
        stamp = self._free_stamps.pop()
        driver, device = self._shared.driver, self._shared.device
        driver.result("vkResetQueryPool", device, self._stamps, stamp, 1)
        driver.result("vkCmdWriteTimestamp", commands, _LAST_STAGE, self._stamps, stamp)
        return stamp

    def submit(self, n_launches: int) -> float | None:
        """Submit open commands. Return the mean seconds per launch of the latest finished submission, or None."""
        commands, self._open = self._open, None
        if commands is not None:
            after = self._stamp(commands)
            before, self._first_stamp = self._first_stamp, None
            self._shared.call("vkEndCommandBuffer", commands)
            stamps = None
            if before is not None and after is not None:
                stamps = before, after
            elif before is not None:
                self._free_stamps.append(before)
            self._hand_over([commands], _Sent(self._last + 1, commands, stamps, n_launches))
        return self._reap()

    def _hand_over(self, commands: list[Any], sent: _Sent, single_submit: bool = False) -> None:
        """Submit command buffers, one by one because drivers limit the time of a submission, or in a single one."""
        value, semaphore = c.c_uint64(sent.value), (c.c_void_p * 1)(self._semaphore)
        timeline = TimelineSubmit(0, None, 1, reference(value))
        kept = [
            (c.c_void_p * len(some))(*some) for some in ([commands] if single_submit else [[one] for one in commands])
        ]
        infos = [
            Submit(0, None, None, len(some), c.cast(some, c.c_void_p), 0, None)
            if some is not kept[-1]
            else Submit(
                *(0, None, None, len(some), c.cast(some, c.c_void_p), 1, c.cast(semaphore, c.c_void_p)),
                next=reference(timeline),
            )
            for some in kept
        ]
        array = (type(infos[0]) * len(infos))(*infos)
        with self._shared.lock:
            self._shared.call("vkQueueSubmit", self._shared.queue, len(infos), array, None)
        self._last = sent.value
        self._sent.append(sent)

    def _reap(self) -> float | None:
        """Recycle the resources of finished submissions, and return seconds per launch of the last one."""
        value = c.c_uint64()
        device = self._shared.device
        self._shared.call("vkGetSemaphoreCounterValue", device, self._semaphore, c.byref(value))
        self._done = max(self._done, value.value)
        seconds = None
        while self._sent and self._sent[0].value <= self._done:
            sent = self._sent.popleft()
            if sent.commands is not None:
                self._spare.append(sent.commands)
            if sent.stamps is not None:
                if sent.n_launches:
                    seconds = self._between(*sent.stamps) * 1e-9 / sent.n_launches
                self._free_stamps += sent.stamps
        return seconds

    def _between(self, before: int, after: int) -> float:
        """Return the nanoseconds between two available timestamps."""
        ticks = [c.c_uint64() for _ in range(2)]
        for stamp, one in zip((before, after), ticks, strict=True):
            asked = (stamp, 1, 8, c.byref(one), c.c_uint64(8), _WHOLE | _WAIT)
            self._shared.call("vkGetQueryPoolResults", self._shared.device, self._stamps, *asked)
        mask = (1 << self._shared.physical.timestamp_bits) - 1
        return ((ticks[1].value - ticks[0].value) & mask) * self._shared.physical.timestamp_ns

    def wait(self) -> None:
        """Block until all submissions are done."""
        self._await(self._last)

    def _await(self, value: int) -> None:
        if self._done < value:
            wanted, semaphore = c.c_uint64(value), (c.c_void_p * 1)(self._semaphore)
            info = WaitInfo(0, 1, c.cast(semaphore, c.c_void_p), reference(wanted))
            limit = c.c_uint64(int(self._limit_s * 1e9))
            driver = self._shared.enter()
            code = driver.result("vkWaitSemaphores", self._shared.device, c.byref(info), limit)
            if code == TIMEOUT:
                self._shared.hangs = True
                text = f"the GPU did not finish its work within {self._limit_s:g} seconds"
                raise self._shared.failed(DeviceError(text, code="lost"))
            if code:
                raise self._shared.failed(driver.error("vkWaitSemaphores", code))
        self._reap()

    def reach_value(self, value: int) -> None:
        """Block until a timeline value is reached, which must have been submitted."""
        self._await(value)

    def begin_piece(self) -> None:
        """Start recording launches."""
        self._piece, self._piece_launched = self._begin(_AGAIN), False

    def end_piece(self, is_last: bool = False) -> Any:
        """Return the recorded piece, and start another one unless it is the last."""
        piece, self._piece = self._piece, None
        self._shared.call("vkEndCommandBuffer", piece)
        if not is_last:
            self._piece = self._begin(_AGAIN)  # keeps `_piece_launched`: pieces run in order
        return piece

    def drop_piece(self) -> None:
        """Discard the piece being recorded."""
        piece, self._piece = self._piece, None
        if piece is not None and self._shared.lost is None:
            self.forget([piece])

    def replay(self, pieces: list[Any], single_submit: bool) -> None:
        """Submit recorded launches, one submission per piece or a single one."""
        self._shared.enter()
        self._hand_over(pieces, _Sent(self._last + 1, None, None, 0), single_submit)

    def forget(self, pieces: list[Any]) -> None:
        """Free recorded launches after they are done."""
        array = (c.c_void_p * len(pieces))(*pieces)
        self._shared.driver.result("vkFreeCommandBuffers", self._shared.device, self._pool, len(pieces), array)

    def mark(self) -> int:
        """Queue a timestamp and return its number."""
        stamp = self._stamp(self._commands())
        number = next(self._numbers)
        self._marks[number] = self.coming, -1 if stamp is None else stamp
        return number

    def times(self, marks: Sequence[int]) -> list[int]:
        """Return the nanoseconds between consecutive marks, and release the marks."""
        found = [self._marks.pop(mark) for mark in marks]
        try:
            if len(found) < 2:
                return []
            self._await(max(value for value, _ in found))
            return [0 if min(a, b) < 0 else round(self._between(a, b)) for (_, a), (_, b) in itertools.pairwise(found)]
        finally:
            self._free_stamps += [stamp for _, stamp in found if stamp >= 0]

    def reach(self, mark: int) -> None:
        """Block until the work before a mark is done, and release the mark."""
        value, stamp = self._marks.pop(mark)
        if stamp >= 0:
            self._free_stamps.append(stamp)
        self._await(value)

    def close(self) -> None:
        """Close the stream after its work is done."""
        driver, device = self._shared.driver, self._shared.device
        # Errors are ignored during cleanup.
        with self._shared.lock:
            driver.result("vkQueueWaitIdle", self._shared.queue)
        driver.result("vkDestroyQueryPool", device, self._stamps, None)
        driver.result("vkDestroySemaphore", device, self._semaphore, None)
        driver.result("vkDestroyCommandPool", device, self._pool, None)
