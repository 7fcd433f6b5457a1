"""Streams that continue when their client disconnects, and can be resumed at any byte.

A client identifies its chat with the header X-Conversation-Id. The answer then runs to its end with or without a
reader, and stays available to the same client for a while.
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

# Starts an answer: acquires resources such as the model on the stack, and returns the frames.
Begin = Callable[[AsyncExitStack], Awaitable[AsyncIterator[bytes]]]

_SECONDS = 600.0  # seconds that a finished stream stays available
_RETRY = 1.0  # seconds after which a client may retry while the model is loading
_MAX_STREAMS = 64  # streams
_MAX_BYTES = 8 << 20  # per stream; a longer stream loses its beginning


class ResumableStream:
    """Buffered bytes of one stream."""

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.started = time.time()
        self.ended: float | None = None
        self.expires = math.inf  # time.monotonic(), which clock changes do not affect
        self.task: asyncio.Task[None] | None = None
        self.is_open = False  # True if the model is loaded and the answer has begun
        self.n_lost = 0  # bytes dropped from the beginning
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(lambda done: done.cancelled() or done.exception())  # the client may be gone
        self._data = bytearray()
        self._ends = array("Q")  # end offsets of the frames, in bytes from the start of the stream
        self._grown = asyncio.Event()

    @property
    def n_bytes(self) -> int:
        """Return the number of bytes so far, including dropped bytes."""
        return self.n_lost + len(self._data)

    def frame_end(self, frame: int) -> int:
        """Return the end offset of a frame, or of the last frame if there are fewer frames."""
        return self._ends[frame] if frame < len(self._ends) else self.n_bytes

    async def opened(self) -> None:
        """Wait until the answer begins, or raise its error. A cancelled caller does not stop the stream."""
        await asyncio.shield(self._opened)

    async def run(self, begin: Begin) -> None:
        """Start the answer and run it to its end."""
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
        """Yield the bytes from `start` on, waiting for new bytes.

        Raises ApiError 400 if some of these bytes have been dropped.
        """
        while True:
            grown = self._grown
            if start < self.n_lost:
                raise invalid_param("from", f"the first {self.n_lost} bytes of the stream are no longer available")
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
    """Streams of all chats, oldest first. Use this class only on the event loop thread."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], ResumableStream] = OrderedDict()

    async def open(self, name: str, owner: str, begin: Begin) -> ResumableStream:
        """Start a resumable stream, replacing an earlier one of the chat, and return it when its answer begins.

        The stream continues if the caller is cancelled, even while its model is loading. Raises the error of the
        answer, or ApiError 503 if there are too many streams.
        """
        stream = self.start(name, owner, begin)
        await stream.opened()
        return stream

    def start(self, name: str, owner: str, begin: Begin) -> ResumableStream:
        """Start a resumable stream and return it before its answer begins. Raises ApiError 503 for too many streams."""
        self.drop(name, owner)
        self._drop_expired()
        self._evict_oldest(owner)
        if len(self._streams) >= _MAX_STREAMS:
            raise ApiError(
                503,
                "too_many_streams",
                f"all {_MAX_STREAMS} resumable streams are in use; try again later",
                retry_after=5.0,
            )
        stream = self._streams[owner, name] = ResumableStream(name, owner)
        stream.task = start_task(stream.run(begin))
        stream.task.add_done_callback(lambda _: self._drop_unopened(stream))
        return stream

    def get(self, name: str, owner: str) -> ResumableStream | None:
        """Return the stream of a chat, even if its model is still loading, or None if the chat has no stream."""
        self._drop_expired()
        return self._streams.get((owner, name))

    def find(self, name: str, owner: str) -> ResumableStream:
        """Return the stream of a chat. Raises ApiError 404 if the client has no such stream.

        Raises ApiError 503 while the model of the stream is loading.
        """
        stream = self.get(name, owner)
        if stream is None:
            raise ApiError(404, "not_found", "this chat has no resumable stream", param="conv_id")
        if not stream.is_open:
            raise ApiError(503, "model_loading", "the stream's model is loading; try again later", retry_after=_RETRY)
        return stream

    def matching(self, names: list[str], owner: str) -> list[ResumableStream]:
        """Return the streams of chats, including streams with a model suffix (`name::model`)."""
        self._drop_expired()
        own = [stream for stream in self._streams.values() if stream.owner == owner]
        return [
            stream for name in names for stream in own if stream.name == name or stream.name.startswith(f"{name}::")
        ]

    def drop(self, name: str, owner: str) -> None:
        """Cancel and remove the stream of a chat, if there is one."""
        stream = self._streams.pop((owner, name), None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()

    async def close(self) -> None:
        """Cancel all streams."""
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
        """Remove the oldest finished stream of the owner with the most streams, so owners cannot evict each other."""
        while len(self._streams) >= _MAX_STREAMS:
            n_of = Counter(one for one, _ in self._streams)
            ended = [key for key, stream in self._streams.items() if stream.ended is not None]
            if not ended:
                return
            del self._streams[max(ended, key=lambda key: (n_of[key[0]], key[0] == owner))]
