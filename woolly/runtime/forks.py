"""Forks: a GPU belongs to the process that opened it, and its driver may hang in a child that asks it for anything."""

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
_lock = threading.RLock()  # held while a thread forks; a handler of signals may fork meanwhile
_collected: list[bool] = []  # whether Python looked for garbage before each fork that is under way


def leave_in_children(one: _Guest) -> None:
    """Call `leave` in each child process forked during the lifetime of the object."""
    _opened.add(one)


def _stop_collecting() -> None:
    """Stops the garbage collector: else the child could collect a program, and close it by the driver, too early."""
    _collected.append(gc.isenabled())
    gc.disable()


def _collect_again() -> None:
    if _collected and _collected.pop():
        gc.enable()


def _leave_all() -> None:
    try:
        for one in list(_opened):
            with suppress(Exception):  # the others are left, too
                one.leave()
    finally:
        _collect_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop_collecting, after_in_parent=_collect_again, after_in_child=_leave_all)
    # Around those above: hooks before a fork run in reverse. Methods in C, which no interrupt can leave half-way.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
