"""Kept streams: answers that go on when their client leaves, and can be read again from any byte.

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
from woolly.serving.generation.threads import start_task

# Opens an answer: enters what it needs in the stack, such as its model, and returns its frames.
Begin = Callable[[AsyncExitStack], Awaitable[AsyncIterator[bytes]]]

_SECONDS = 600.0  # that an ended stream is kept
_RETRY = 1.0  # seconds after which a client may ask again for a stream that waits for its model
_MAX_STREAMS = 64  # streams
_MAX_BYTES = 8 << 20  # of one stream; a longer one loses its beginning


class KeptStream:
    """The bytes of one stream so far."""

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.started = time.time()
        self.ended: float | None = None
        self.kept_until = math.inf  # by time.monotonic(): a clock that is set drops nothing
        self.task: asyncio.Task[None] | None = None
        self.is_open = False  # whether its model is loaded and the answer has begun
        self.n_lost = 0  # bytes of its beginning that are kept no longer
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(lambda done: done.cancelled() or done.exception())  # its client may be gone
        self._data = bytearray()
        self._ends = array("Q")  # of the frames, in bytes from the first on
        self._grown = asyncio.Event()

    @property
    def n_bytes(self) -> int:
        """Returns how many bytes there were so far."""
        return self.n_lost + len(self._data)

    def end_of(self, frame: int) -> int:
        """Returns the byte behind a frame, counted from 0; that behind the last one if there are not as many yet."""
        return self._ends[frame] if frame < len(self._ends) else self.n_bytes

    async def opened(self) -> None:
        """Waits until the answer begins. Raises why it does not; goes on if the caller is cancelled."""
        await asyncio.shield(self._opened)

    async def fill(self, begin: Begin) -> None:
        """Opens the answer and runs it to its end."""
        try:
            async with AsyncExitStack() as held:
                frames = await begin(held)
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
            self.kept_until = time.monotonic() + _SECONDS
            self._tell()

    async def read(self, start: int = 0) -> AsyncIterator[bytes]:
        """Yields the bytes from one on, waiting for those that are still to come. ApiError 400 if some are lost."""
        while True:
            grown = self._grown
            if start < self.n_lost:
                raise invalid_param("from", f"the first {self.n_lost} bytes of the stream are kept no longer")
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


class KeptStreams:
    """The streams of all conversations, the oldest first. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], KeptStream] = OrderedDict()

    async def open(self, name: str, owner: str, begin: Begin) -> KeptStream:
        """Returns a stream that is kept, when its answer begins; an earlier one of the conversation is given up.

        It goes on if the caller is cancelled, also while it waits for its model. Raises why the answer does not begin;
        ApiError 503 if too many run.
        """
        kept = self.start(name, owner, begin)
        await kept.opened()
        return kept

    def start(self, name: str, owner: str, begin: Begin) -> KeptStream:
        """Returns a stream that is kept, whose answer has still to begin. ApiError 503 if too many run."""
        self.drop(name, owner)
        self._forget_old()
        self._make_room(owner)
        if len(self._streams) >= _MAX_STREAMS:
            raise ApiError(503, "too_many_streams", f"{_MAX_STREAMS} kept streams run already", retry_after=5.0)
        kept = self._streams[owner, name] = KeptStream(name, owner)
        kept.task = start_task(kept.fill(begin))
        kept.task.add_done_callback(lambda _: self._forget_unopened(kept))
        return kept

    def get(self, name: str, owner: str) -> KeptStream | None:
        """Returns the stream of a conversation, also one that waits for its model; None if it is not kept."""
        self._forget_old()
        return self._streams.get((owner, name))

    def find(self, name: str, owner: str) -> KeptStream:
        """Returns the stream of a conversation. ApiError 404 if it is not kept, or is another client's.

        ApiError 503 while it waits for its model.
        """
        kept = self.get(name, owner)
        if kept is None:
            raise ApiError(404, "not_found", "no stream of this conversation is kept", param="conv_id")
        if not kept.is_open:
            raise ApiError(503, "model_loading", "the stream waits for its model; try again", retry_after=_RETRY)
        return kept

    def known(self, names: list[str], owner: str) -> list[KeptStream]:
        """Returns the streams of conversations, also those whose name has a model's behind it (`name::model`)."""
        self._forget_old()
        own = [kept for kept in self._streams.values() if kept.owner == owner]
        return [kept for name in names for kept in own if kept.name == name or kept.name.startswith(f"{name}::")]

    def drop(self, name: str, owner: str) -> None:
        """Ends and forgets the stream of a conversation, if there is one."""
        kept = self._streams.pop((owner, name), None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    async def close(self) -> None:
        """Ends all streams."""
        for kept in list(self._streams.values()):
            self.drop(kept.name, kept.owner)
            if kept.task is not None:
                with suppress(asyncio.CancelledError):
                    await kept.task

    def _forget_unopened(self, kept: KeptStream) -> None:
        if not kept.is_open and self._streams.get((kept.owner, kept.name)) is kept:
            del self._streams[kept.owner, kept.name]

    def _forget_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, kept in self._streams.items() if kept.kept_until < now]:
            del self._streams[key]

    def _make_room(self, owner: str) -> None:
        """Forgets the oldest that ended of the owner who has most: nobody can push out the stream of another."""
        while len(self._streams) >= _MAX_STREAMS:
            n_of = Counter(one for one, _ in self._streams)
            ended = [key for key, kept in self._streams.items() if kept.ended is not None]
            if not ended:
                return
            del self._streams[max(ended, key=lambda key: (n_of[key[0]], key[0] == owner))]
