"""Cancellable waiting for work on threads."""

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
    """Run a function on a thread of `pool`, by default the pool of all requests, and return its result.

    Threads cannot be cancelled. A cancelled caller waits until the thread ends, so that the capacity, memory and model
    stay reserved while the thread uses them. Before that, `on_cancel` is called, which may tell the function to stop,
    and child processes of the thread are killed.
    """
    # Unlike asyncio.to_thread, this supports other pools; the context of the task is passed in the same way.
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
                continue  # cancelled again; still wait for the thread
        if not work.cancelled():
            work.exception()  # mark as retrieved: the caller gets CancelledError
        raise
    finally:
        # Break the cycle of traceback, frame and future, which would keep the arguments, such as a request body.
        del work, run


class SharedTask(Generic[T]):
    """Work that runs once for all concurrent callers, and continues if a caller is cancelled.

    Use it for work on a thread, because it occupies only one thread for any number of callers.
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
    """Start a task whose error asyncio does not log if it is never awaited."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark the error as retrieved
    return task
