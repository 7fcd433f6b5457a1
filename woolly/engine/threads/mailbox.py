"""Mailboxes: chunks on their way from the engine's thread to one reader, on a thread or on an event loop."""

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

_REST = 5.0  # how much longer a bell rests than its readers worked: their most of the interpreter's time is a sixth
_SHORT, _MAX_REST = 0.001, 0.1  # seconds: of work that needs no rest, and of a rest
_ROUNDS = 3  # of the loop, after which tasks that an event wakes, and tasks that these wake, have had their turn


class Mailbox:
    """Keeps chunks until they are read, so a slow reader delays nobody.

    `wake` only wakes: the reader then looks at the state of the mailbox, so a wake-up that is lost to Ctrl-C, or that
    comes too often, changes nothing. A mailbox holds no reference to its reader, so a dropped reader is finalized.
    """

    def __init__(self, n_answers: int, wake: Callable[[], None]) -> None:
        self.n_open = n_answers  # answers whose last chunk has not arrived
        self._wake = wake
        self._chunks: deque[Chunk] = deque()

    def post(self, _: Request, chunk: Chunk) -> None:
        """Adds a chunk and wakes the reader. Called by the engine's thread."""
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.n_open -= 1
        self._wake()

    def take(self) -> Chunk | None:
        """The oldest chunk that has arrived, or None."""
        return self._chunks.popleft() if self._chunks else None

    @property
    def is_over(self) -> bool:
        """Whether every chunk has arrived and was taken."""
        return self.n_open == 0 and not self._chunks  # in this order: `post` adds the last chunk before it counts it


class ThreadMailbox(Mailbox):
    """A mailbox whose reader is a thread that may block."""

    def __init__(self, n_answers: int) -> None:
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        super().__init__(n_answers, partial(self._bell.put, None))

    def read(self) -> Chunk | None:
        """Waits for the next chunk; None after the last."""
        while not self.is_over:
            if (chunk := self.take()) is not None:
                return chunk
            self._bell.get()
        return None


class LoopMailbox(Mailbox):
    """A mailbox whose reader is a task of an event loop."""

    def __init__(self, n_answers: int, bell: LoopBell) -> None:
        import asyncio  # takes 20 ms, and readers on threads need none of it

        self._arrived = asyncio.Event()
        super().__init__(n_answers, partial(bell.ring, self._arrived))

    async def read(self) -> Chunk | None:
        """Waits for the next chunk; None after the last."""
        while not self.is_over:
            self._arrived.clear()  # before the look: what arrives after it sets the event again
            if (chunk := self.take()) is not None:
                return chunk
            await self._arrived.wait()
        return None

    async def read_joined(self) -> Chunk | None:
        """Waits for the next chunk, with the texts of those that wait behind it; None after the last.

        A reader that is late has as much work for several tokens as for one. Chunks of other answers, with
        log-probabilities or progress, and the last one are chunks of their own.
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
    """Whether a chunk has nothing but text."""
    is_last = chunk.finish_reason is not None or chunk.error is not None
    return not is_last and not chunk.logprobs and chunk.n_computed is None


class LoopBell:
    """Wakes tasks of the running event loop. Mailboxes that share a bell share one call into the loop per step.

    While many readers have work, the bell rests between two rounds for as long as a round takes, times `_REST`: the
    loop and the engine's thread share one interpreter, and the engine must not wait for readers. What arrives
    meanwhile is read in the next round, several tokens at once.
    """

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._rung: deque[asyncio.Event] = deque()
        self._is_called = False

    def ring(self, event: asyncio.Event) -> None:
        """Sets an event, on the loop. Called by the engine's thread."""
        self._rung.append(event)
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # a closed loop has no readers
                self._loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        """Wakes all readers whose mail has come."""
        n = 0
        for _ in range(len(self._rung)):
            self._rung.popleft().set()
            n += 1
        if n > 1:
            self._loop.call_soon(self._end_round, time.monotonic(), _ROUNDS)
        else:
            self._open()

    def _end_round(self, started: float, n_left: int) -> None:
        """Rests after the readers had their turn, if that took long."""
        if n_left > 1:
            self._loop.call_soon(self._end_round, started, n_left - 1)
            return
        seconds = time.monotonic() - started
        if seconds < _SHORT:
            self._open()
        else:
            self._loop.call_later(min(_MAX_REST, _REST * seconds), self._open)

    def _open(self) -> None:
        self._is_called = False  # first: an event that is added from here on needs another call
        if self._rung:
            self._is_called = True
            self._set_all()
