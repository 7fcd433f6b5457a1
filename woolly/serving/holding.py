"""Holding on: work on another thread that its request does not leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Shared", "run_held"]

T = TypeVar("T")


async def run_held(function: Callable[..., T], *args: Any) -> T:
    """What a function returns that runs on a thread of the pool.

    A thread cannot be cancelled: where the caller is, it leaves when the thread is done, so that its place, its bytes
    and its model stay taken for as long as they are used.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # told once more to leave, which it does in a moment
        if not work.cancelled():
            work.exception()  # nobody is left to be told
        raise


class Shared(Generic[T]):
    """Work that is done once for all who ask while it is done, and goes on when one of them leaves.

    For what holds a thread of the pool: however many ask, it holds one.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """What the work gives, or raises."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(_observe)
        return await asyncio.shield(self._task)


def _observe(task: asyncio.Task[Any]) -> None:
    """Whoever waits gets the error; there may be nobody."""
    if not task.cancelled():
        task.exception()
