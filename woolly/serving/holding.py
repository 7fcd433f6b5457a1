"""Holding on: work on another thread that its request does not leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["run_held"]

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
