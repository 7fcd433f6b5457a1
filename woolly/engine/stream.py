"""The Stream: chunks of an answer as they are made."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from woolly.engine.completion import Chunk
from woolly.engine.driver import Driver
from woolly.engine.sequence import Sequence

__all__ = ["Stream"]


class Stream(Iterator[Chunk]):
    """An iterator of chunks. The request starts at the first one, and ends when this is closed.

    Of n answers to one prompt the chunks come in turn; `Chunk.index` says whose they are. An error of the request is
    raised by the read that meets it. A reader that is slow is not waited for: chunks stay here until they are read.
    """

    def __init__(self, driver: Driver, sequences: Seq[Sequence]) -> None:
        self._driver = driver
        self._sequences = tuple(sequences)
        self._mail = _Mail(len(self._sequences))
        self._started = self._closed = False

    def __next__(self) -> Chunk:
        if self._closed:
            raise StopIteration
        self._driver.check_outside()
        if not self._started:
            self._started = True
            try:
                self._driver.add(self._sequences, self._mail.post)
            except BaseException:
                self.close()
                raise
        chunk = self._mail.take()
        if chunk is None:
            raise StopIteration
        if chunk.error is not None:
            self.close()
            raise chunk.error
        return chunk

    def close(self) -> None:
        """Cancels what has not finished; its place in the cache is free again."""
        self._end(wait=True)

    def __del__(self) -> None:
        self._end(wait=False)

    def _end(self, wait: bool) -> None:
        if not self._closed:
            self._closed = True
            if self._started and self._mail.n_open:
                self._driver.cancel(self._sequences, wait=wait)


class _Mail:
    """From the engine's thread to a reader. Holds no reference to the stream, so that a dropped one is noticed.

    The bell only wakes; what is told is the state of the rest. So a Ctrl-C that loses a ring loses nothing.
    """

    def __init__(self, n_sequences: int) -> None:
        self.n_open = n_sequences  # answers whose last chunk has not come
        self._chunks: deque[Chunk] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def post(self, _: Sequence, chunk: Chunk) -> None:
        """Called by the engine's thread."""
        self._chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.n_open -= 1
        self._bell.put(None)

    def take(self) -> Chunk | None:
        """The next chunk; None where there is none to come."""
        while True:
            n_open = self.n_open  # first: the last chunk is put down before it is counted
            if self._chunks:
                return self._chunks.popleft()
            if n_open == 0:
                return None
            self._bell.get()
