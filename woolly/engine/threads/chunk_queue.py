"""Queues of output chunks from the engine thread to a reader on a thread or an event loop."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from woolly.engine.request import Request
    from woolly.engine.threads.completion import Chunk

_PAUSE_FACTOR = 5.0  # pause per second of reader work, so that readers take at most a sixth of the interpreter time
_MIN_ROUND, _MAX_PAUSE = 0.001, 0.1  # minimum round that causes a pause, and maximum pause, in seconds
_ROUNDS = 3  # loop iterations until woken tasks, and tasks that they wake, have run


class ChunkQueue:
    """Unbounded queue of chunks, so that a slow reader does not delay other requests.

    `wake` carries no data: the reader checks the queue, so lost (Ctrl-C) and spurious wake-ups are harmless. The queue
    does not reference its reader, so a dropped reader is finalized.
    """

    def __init__(self, n_answers: int, wake: Callable[[], None]) -> None:
        self.n_open = n_answers  # answers without a final chunk
        self._wake = wake
        self._chunks: deque[Chunk] = deque()

    def put(self, _: Request, chunk: Chunk) -> None:
        """Append a chunk and wake the reader. Called by the engine thread."""
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.n_open -= 1
        self._wake()

    def take(self) -> Chunk | None:
        """Return the oldest chunk, or None if the queue is empty."""
        return self._chunks.popleft() if self._chunks else None

    @property
    def is_over(self) -> bool:
        """True if every chunk has arrived and has been read."""
        return self.n_open == 0 and not self._chunks  # `put` appends before it updates n_open


class ThreadChunkQueue(ChunkQueue):
    """Chunk queue of a blocking thread."""

    def __init__(self, n_answers: int) -> None:
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        super().__init__(n_answers, partial(self._wakeups.put, None))

    def read(self) -> Chunk | None:
        """Wait for the next chunk; return None after the last one."""
        while not self.is_over:
            if (chunk := self.take()) is not None:
                return chunk
            self._wakeups.get()
        return None


class AsyncChunkQueue(ChunkQueue):
    """Chunk queue of an asyncio task."""

    def __init__(self, n_answers: int, notifier: LoopNotifier) -> None:
        import asyncio  # takes 20 ms; readers on threads do not need it

        self._arrived = asyncio.Event()
        super().__init__(n_answers, partial(notifier.notify, self._arrived))

    async def read(self) -> Chunk | None:
        """Wait for the next chunk; return None after the last one."""
        while not self.is_over:
            self._arrived.clear()  # cleared before checking, so that a later chunk sets the event again
            if (chunk := self.take()) is not None:
                return chunk
            await self._arrived.wait()
        return None

    async def read_joined(self) -> Chunk | None:
        """Wait for the next chunk; return None after the last one.

        Queued text chunks of the same answer are merged into it, so a late reader handles several tokens at a time.
        Final chunks and chunks with log-probabilities or progress are never merged.
        """
        chunk = await self.read()
        if chunk is None or not self._chunks or not _is_plain(chunk):
            return chunk
        texts = [chunk.text]
        while self._chunks and _is_plain(follows := self._chunks[0]) and follows.index == chunk.index:
            texts.append(follows.text)
            self._chunks.popleft()
        return chunk if len(texts) == 1 else replace(chunk, text="".join(texts))


def _is_plain(chunk: Chunk) -> bool:
    """True if a chunk only has text."""
    is_last = chunk.finish_reason is not None or chunk.error is not None
    return not is_last and not chunk.logprobs and chunk.n_computed is None


class LoopNotifier:
    """Wakes tasks of the running event loop, with one call into the loop per step for all queues.

    While many readers have work, the notifier pauses after each round for `_PAUSE_FACTOR` times the duration of the
    round. The loop and the engine thread share the GIL, and the engine must not wait for readers. Readers merge the
    tokens that arrive during a pause.
    """

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._events: deque[asyncio.Event] = deque()
        self._is_called = False

    def notify(self, event: asyncio.Event) -> None:
        """Set an event on the loop. Called by the engine thread."""
        self._events.append(event)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # a closed loop has no readers
                self._loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        """Wake all readers of new chunks."""
        n = 0
        for _ in range(len(self._events)):
            self._events.popleft().set()
            n += 1
        if n > 1:
            self._loop.call_soon(self._end_round, time.monotonic(), _ROUNDS)
        else:
            self._open()

    def _end_round(self, started: float, n_left: int) -> None:
        """Pause after a long round of readers."""
        if n_left > 1:
            self._loop.call_soon(self._end_round, started, n_left - 1)
            return
        seconds = time.monotonic() - started
        if seconds < _MIN_ROUND:
            self._open()
        else:
            self._loop.call_later(min(_MAX_PAUSE, _PAUSE_FACTOR * seconds), self._open)

    def _open(self) -> None:
        self._is_called = False  # reset first: later events need another call
        if self._events:
            self._is_called = True
            self._set_all()
