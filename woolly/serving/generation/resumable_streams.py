"""Kept streams: answers that continue when their client leaves, and can be read again from any byte.

A client names its conversation in the header X-Conversation-Id. The answer then runs to its end with or without a
reader, and is kept for a while, for the same client only.
"""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.generation.thread_pool import start_task

# Opens an answer: enters its resources, such as its model, in the stack, and returns its frames.
Begin = Callable[[AsyncExitStack], Awaitable[AsyncIterator[bytes]]]

_SECONDS = 600.0  # seconds that an ended stream is kept
_RETRY = 1.0  # seconds after which a client may ask again for a stream that waits for its model
_MAX_STREAMS = 64  # streams
_MAX_BYTES = 8 << 20  # of one stream; a longer one loses its beginning


class ResumableStream:
    """The bytes of one stream so far."""

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.started = time.time()
        self.ended: float | None = None
        self.expires = math.inf  # by time.monotonic(): a clock that is set drops nothing
        self.task: asyncio.Task[None] | None = None
        self.is_open = False  # whether its model is loaded and the answer has begun
        self.n_lost = 0  # bytes of its beginning that are dropped
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(lambda done: done.cancelled() or done.exception())  # its client may be gone
        self._data = bytearray()
        self._ends = array("Q")  # of the frames, in bytes from the first on
        self._grown = asyncio.Event()

    @property
    def n_bytes(self) -> int:
        """Return how many bytes there were so far."""
        return self.n_lost + len(self._data)

    def frame_end(self, frame: int) -> int:
        """Return the byte behind a frame, counted from 0; that behind the last one if there are not as many yet."""
        return self._ends[frame] if frame < len(self._ends) else self.n_bytes

    async def opened(self) -> None:
        """Wait until the answer begins, or raise its error; continues if the caller is cancelled."""
        await asyncio.shield(self._opened)

    async def run(self, begin: Begin) -> None:
        """Opens the answer and runs it to its end."""
        try:
            async with AsyncExitStack() as stack:
                frames = await begin(stack)
                self.is_open = True
                self._opened.set_result(None)
                async for frame in frames:
                    self._data += frame
                    self._ends.append(self.n_bytes)
                    if (n_more := len(self._data) - _MAX_BYTES) > 0:
                        del self._data[:n_more]
                        self.n_lost += n_more
                    self._tell()
        except asyncio.CancelledError:
            self._fail(ApiError(400, "request_cancelled", "the stream was cancelled before its answer began"))
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self.ended = time.time()
            self.expires = time.monotonic() + _SECONDS
            self._tell()

    async def read(self, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes from one on, waiting for those that are still to come. ApiError 400 if some are lost."""
        while True:
            grown = self._grown
            if start < self.n_lost:
                raise invalid_param("from", f"the first {self.n_lost} bytes of the stream are stream no longer")
            if start < self.n_bytes:
                piece = bytes(self._data[start - self.n_lost :])
                start += len(piece)
                yield piece
            elif self.ended is not None:
                return
            else:
                await grown.wait()

    def _fail(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _tell(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


class ResumableStreams:
    """The streams of all conversations, the oldest first. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], ResumableStream] = OrderedDict()

    async def open(self, name: str, owner: str, begin: Begin) -> ResumableStream:
        """Return a new kept stream when its answer begins; an earlier one of the conversation is dropped.

        It continues if the caller is cancelled, also while it waits for its model. Raises the error of the answer;
        ApiError 503 if too many run.
        """
        stream = self.start(name, owner, begin)
        await stream.opened()
        return stream

    def start(self, name: str, owner: str, begin: Begin) -> ResumableStream:
        """Return a new kept stream before its answer begins. ApiError 503 if too many run."""
        self.drop(name, owner)
        self._drop_expired()
        self._evict_oldest(owner)
        if len(self._streams) >= _MAX_STREAMS:
            raise ApiError(503, "too_many_streams", f"{_MAX_STREAMS} kept streams run already", retry_after=5.0)
        stream = self._streams[owner, name] = ResumableStream(name, owner)
        stream.task = start_task(stream.run(begin))
        stream.task.add_done_callback(lambda _: self._drop_unopened(stream))
        return stream

    def get(self, name: str, owner: str) -> ResumableStream | None:
        """Return the stream of a conversation, also one that waits for its model; None if it is not kept."""
        self._drop_expired()
        return self._streams.get((owner, name))

    def find(self, name: str, owner: str) -> ResumableStream:
        """Return the stream of a conversation. ApiError 404 if it is not kept, or is another client's.

        ApiError 503 while it waits for its model.
        """
        stream = self.get(name, owner)
        if stream is None:
            raise ApiError(404, "not_found", "no stream of this conversation is stream", param="conv_id")
        if not stream.is_open:
            raise ApiError(503, "model_loading", "the stream waits for its model; try again", retry_after=_RETRY)
        return stream

    def matching(self, names: list[str], owner: str) -> list[ResumableStream]:
        """Return the streams of conversations, also those whose name has a model's behind it (`name::model`)."""
        self._drop_expired()
        own = [stream for stream in self._streams.values() if stream.owner == owner]
        return [
            stream for name in names for stream in own if stream.name == name or stream.name.startswith(f"{name}::")
        ]

    def drop(self, name: str, owner: str) -> None:
        """Ends and forgets the stream of a conversation, if there is one."""
        stream = self._streams.pop((owner, name), None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()

    async def close(self) -> None:
        """Ends all streams."""
        for stream in list(self._streams.values()):
            self.drop(stream.name, stream.owner)
            if stream.task is not None:
                with suppress(asyncio.CancelledError):
                    await stream.task

    def _drop_unopened(self, stream: ResumableStream) -> None:
        if not stream.is_open and self._streams.get((stream.owner, stream.name)) is stream:
            del self._streams[stream.owner, stream.name]

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for key in [key for key, stream in self._streams.items() if stream.expires < now]:
            del self._streams[key]

    def _evict_oldest(self, owner: str) -> None:
        """Forget the oldest ended stream of the owner with the most: owners cannot evict each other's streams."""
        while len(self._streams) >= _MAX_STREAMS:
            n_of = Counter(one for one, _ in self._streams)
            ended = [key for key, stream in self._streams.items() if stream.ended is not None]
            if not ended:
                return
            del self._streams[max(ended, key=lambda key: (n_of[key[0]], key[0] == owner))]
