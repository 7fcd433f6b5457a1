"""One process at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["POLL_SECONDS", "alone"]

POLL_SECONDS = 0.1


@contextlib.contextmanager
def alone(lock: Path, while_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that ends with this process.

    The empty file stays: to remove it would race with whoever waits for it.
    """
    with lock.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(POLL_SECONDS)
        yield
