"""Time limit of one translation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from woolly.errors import RequestError

MAX_SECONDS = 3.0  # of CPU time: patterns of one schema are compared in 1 to 500 ms
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def budget() -> Iterator[None]:
    """Limit the CPU time of a translation, which `tick` compares with the clock of the thread."""
    token = _deadline.set(time.thread_time() + MAX_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(token)


def tick() -> None:
    """Raise RequestError if the translation takes too long."""
    deadline = _deadline.get()
    if deadline is not None and time.thread_time() > deadline:
        raise RequestError("the JSON schema takes too long to translate; use fewer patterns and alternatives")
