"""Fork handling: a GPU belongs to the process that opened it, and its driver may hang if a child calls it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from typing import Protocol


class _Guest(Protocol):
    """GPU resources of a process."""

    def leave(self) -> None:
        """Mark the resources as lost in a forked child, which must not call the driver."""


_opened: weakref.WeakSet[_Guest] = weakref.WeakSet()
_lock = threading.RLock()  # held during a fork; reentrant because a signal handler may fork meanwhile
_collected: list[bool] = []  # state of the garbage collector before each fork in progress


def release_in_children(one: _Guest) -> None:
    """Call `leave` in each child process forked during the lifetime of the object."""
    _opened.add(one)


def _stop_collecting() -> None:
    """Stop the garbage collector, so that the child cannot collect a program and call the driver to close it."""
    _collected.append(gc.isenabled())
    gc.disable()


def _collect_again() -> None:
    if _collected and _collected.pop():
        gc.enable()


def _leave_all() -> None:
    try:
        for one in list(_opened):
            with suppress(Exception):  # an error must not keep the other objects open
                one.leave()
    finally:
        _collect_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop_collecting, after_in_parent=_collect_again, after_in_child=_leave_all)
    # Registered last to run first, because hooks before a fork run in reverse. C methods cannot be interrupted
    # half-way.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
