"""The Stream: chunks of an answer as they are made."""

from __future__ import annotations

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
    raised by the read that meets it.
    """

    def __init__(self, driver: Driver, sequences: Seq[Sequence]) -> None:
        self._driver = driver
        self._sequences = tuple(sequences)
        self._chunks: deque[Chunk] = deque()
        self._n_open = len(self._sequences)
        self._started = self._closed = False

    def __next__(self) -> Chunk:
        if self._closed or (self._n_open == 0 and not self._chunks):
            raise StopIteration
        _ = self._driver.engine  # says so where it was closed
        if not self._started:
            self._started = True
            chunks = self._chunks
            self._driver.add(self._sequences, lambda _, chunk: chunks.append(chunk))
        self._driver.wait(lambda: bool(self._chunks))
        chunk = self._chunks.popleft()
        if chunk.finish_reason is not None:
            self._n_open -= 1
        if chunk.error is not None:
            self.close()
            raise chunk.error
        return chunk

    def close(self) -> None:
        """Cancels what has not finished; its place in the cache is free again."""
        self._end(blocking=True)

    def __del__(self) -> None:
        self._end(blocking=False)

    def _end(self, blocking: bool) -> None:
        if not self._closed:
            self._closed = True
            if self._started and self._n_open:
                self._driver.cancel(self._sequences, blocking=blocking)
