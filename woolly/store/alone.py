"""One process at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["POLL_SECONDS", "alone"]

POLL_SECONDS = 0.1


@contextlib.contextmanager
def alone(lock: Path, while_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that ends with this process.

    The empty file stays: to remove it would race with whoever waits for it.
    """
    with lock.open("ab") as file:
        while not _is_ours(file):
            while_waiting()
            time.sleep(POLL_SECONDS)
        yield


if sys.platform == "win32":

    def _is_ours(file: IO[bytes]) -> bool:
        """Takes the lock if it is free: of a byte that the file need not have, and until the file is closed."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:

    def _is_ours(file: IO[bytes]) -> bool:
        """Takes the lock if it is free, until the file is closed."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
