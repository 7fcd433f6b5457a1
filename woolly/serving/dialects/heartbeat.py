"""Heartbeats in a stream while a long prompt is computed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

SECONDS = 15.0  # clients time out after 300 s without data, proxies after 60 s


async def with_heartbeats(frames: AsyncIterator[bytes], beat: Callable[[], bytes]) -> AsyncIterator[bytes]:
    """Yield the frames, and a `beat` after each interval without a frame."""
    pump = _Pump(frames, SECONDS)
    try:
        while True:
            while pump.ready:
                yield pump.ready.popleft()
            if pump.task.done():
                if not pump.ready:  # frames may have arrived before the task ended
                    pump.task.result()  # raises the error of the frames
                    return
            elif await pump.is_silent() and not pump.ready:  # a frame that has just arrived comes first
                yield beat()
    finally:
        pump.close()


class _Pump:
    """Task that reads frames. A task and a timer per frame would cost 20 µs on the event loop."""

    def __init__(self, frames: AsyncIterator[bytes], seconds: float) -> None:
        self.ready: deque[bytes] = deque()
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._last = time.monotonic()
        self._waiting: asyncio.Future[bool] | None = None
        self._timer = self._loop.call_later(seconds, self._tick)
        self.task = self._loop.create_task(self._read(frames))
        self.task.add_done_callback(lambda _: self._wake(False))

    async def is_silent(self) -> bool:
        """Wait for a frame, the end or the next heartbeat; return True for a heartbeat."""
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def close(self) -> None:
        """Stop reading."""
        self._timer.cancel()
        self.task.cancel()

    async def _read(self, frames: AsyncIterator[bytes]) -> None:
        async for frame in frames:
            self.ready.append(frame)
            self._last = time.monotonic()
            self._wake(False)

    def _wake(self, is_silent: bool) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(is_silent)

    def _tick(self) -> None:
        left = self._last + self._seconds - time.monotonic()
        if left <= 0:
            self._last, left = time.monotonic(), self._seconds
            self._wake(True)
        self._timer = self._loop.call_later(left, self._tick)
