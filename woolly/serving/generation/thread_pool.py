"""Threads: work on a thread of the pool, awaited by requests that may be cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, Generic, TypeVar

from woolly.machine.limited_process import abandoned

T = TypeVar("T")


async def run_in_thread(
    function: Callable[..., T], *args: Any, on_cancel: Callable[[], None] | None = None, pool: Executor | None = None
) -> T:
    """Run a function on a thread of a pool and return its result; by default the pool of all requests.

    A thread cannot be cancelled. If the caller is, it still waits for the thread, so that its place, its bytes and its
    model stay taken as long as the thread uses them. `on_cancel` is called then: the function may check for
    cancellation. Children that the thread waits for are killed then.
    """
    # With the context of the task, as asyncio.to_thread runs it, which knows no other pool.
    context, left = contextvars.copy_context(), threading.Event()
    context.run(abandoned.set, left)
    run = partial(context.run, function, *args)
    work: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(pool, run)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        left.set()
        if on_cancel is not None:
            on_cancel()
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # cancelled once more; it leaves when the thread is done
        if not work.cancelled():
            work.exception()  # marks it as retrieved: the caller gets CancelledError
        raise
    finally:
        # An exception's traceback refers to this frame, and the future to the exception: without this, a cycle that
        # keeps the arguments, such as the body of a request.
        del work, run


class SharedTask(Generic[T]):
    """Work that runs once for all concurrent callers, and continues if one of them is cancelled.

    For work on a thread of the pool: it holds one thread, however many callers there are.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the result of the work, or raise its error."""
        if self._task is None or self._task.done():
            self._task = start_task(self._work())
        return await asyncio.shield(self._task)


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return a task whose error asyncio does not log if it is never awaited."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # marks the error as retrieved
    return task
