"""Stream: chunks of an answer as they are generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from woolly.engine.threads.chunk_queue import ThreadChunkQueue
from woolly.engine.threads.completion import Chunk, Completion
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.engine.threads.driver import EngineDriver

AnyChunk = TypeVar("AnyChunk", bound=Chunk, covariant=True)


class ChunkStream(Iterator[AnyChunk]):
    """Iterator over chunks of any type.

    The request starts at the first read, and ends when the stream is closed or dropped.
    Chunks of n answers to a prompt are interleaved; `Chunk.index` is the index of the answer. If the request fails,
    reading raises its error. The queue of unread chunks is unbounded.
    """

    def __init__(self, driver: EngineDriver, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)  # one per answer
        self._driver = driver
        self._queue = ThreadChunkQueue(len(self.requests))
        self._started = self._closed = False

    @property
    def seed(self) -> int:
        """Seed of the first answer; random if the request set no seed."""
        return self.requests[0].sampler.seed

    @property
    def completion(self) -> Completion:
        """Complete answer; raise RequestError while it is unfinished."""
        if any(request.finish_reason is None for request in self.requests):
            raise RequestError("the answer is unfinished; read the stream to its end, or close it")
        return Completion.of(self.requests)

    def __repr__(self) -> str:
        reasons = [request.finish_reason or "open" for request in self.requests]
        text = self.requests[0].text
        shown = repr(text if len(text) <= 40 else f"{text[:40]}...")
        return f"{type(self).__name__}({shown if self._started else 'not read yet'}, {', '.join(reasons)})"

    def _read(self, chunk: Chunk) -> AnyChunk:
        """Return a chunk of the engine as a chunk of this stream."""
        raise NotImplementedError

    def __next__(self) -> AnyChunk:
        if self._closed:
            raise StopIteration
        self._driver.check_outside()
        if not self._started:
            self._started = True
            try:
                self._driver.add(self.requests, self._queue.put)
            except BaseException:
                self.close()
                raise
        chunk = self._queue.read()
        if chunk is None:
            raise StopIteration
        if chunk.error is not None:
            self.close()
            raise chunk.error
        return self._read(chunk)

    def close(self) -> None:
        """Cancel unfinished answers and wait until their pages are free."""
        self._end(wait=True)

    def __del__(self) -> None:
        self._end(wait=False)

    def _end(self, wait: bool) -> None:
        if not self._closed:
            self._closed = True
            if self._started and self._queue.n_open:
                self._driver.cancel(self.requests, wait=wait)


class Stream(ChunkStream[Chunk]):
    """Iterator over the chunks of an answer to a prompt."""

    def _read(self, chunk: Chunk) -> Chunk:
        return chunk
