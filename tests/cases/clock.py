"""An event loop for tests of timers: it waits for none of them."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest


class _Loop(asyncio.SelectorEventLoop):
    """When nothing but timers is left to wait for, its clock jumps to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        select = self._selector.select

        def skip(timeout: float | None = None) -> Any:
            events = select(0 if timeout else timeout)
            if timeout and not events:
                self.skipped += timeout
            return events

        self._selector.select = skip


def run_skipping(story: Coroutine[Any, Any, Any]) -> Any:
    """Runs a story of one thread by a clock that a busy machine does not move: seconds pass in sleeps alone."""
    loop, now = _Loop(), time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", lambda: now + loop.skipped)
        try:
            return loop.run_until_complete(_to_the_end(story))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


async def _to_the_end(story: Coroutine[Any, Any, Any]) -> Any:
    """Awaits the story, then ends what it began; `asyncio.Runner` does this from Python 3.11 on."""
    try:
        return await story
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
