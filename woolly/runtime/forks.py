"""Forks: a GPU belongs to the process that opened it, and its driver may hang in a child that asks it for anything."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Protocol

__all__ = ["leave_in_children"]


class _Guest(Protocol):
    """What a process has of a GPU."""

    def leave(self) -> None:
        """In a forked child: nothing of the GPU is its own, and the driver must not be asked."""


_opened: weakref.WeakSet[_Guest] = weakref.WeakSet()
_lock = threading.Lock()  # held while a thread forks
_collected = True  # whether Python looked for garbage before


def leave_in_children(one: _Guest) -> None:
    """Has `leave` called in each child that is forked while this is there."""
    _opened.add(one)


def _begin() -> None:
    """A program that is garbage would be closed in the child, by its driver, before its device is left there."""
    global _collected
    _lock.acquire()
    _collected = gc.isenabled()
    gc.disable()


def _end() -> None:
    if _collected:
        gc.enable()
    _lock.release()


def _end_in_child() -> None:
    for one in _opened:
        one.leave()
    _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_begin, after_in_parent=_end, after_in_child=_end_in_child)
