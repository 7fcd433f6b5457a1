"""File lock between processes, released when its process ends."""

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

POLL_SECONDS = 0.1


@contextlib.contextmanager
def file_lock(lock: Path, while_waiting: Callable[[], None]) -> Iterator[IO[bytes]]:
    """Acquire the lock for the block, calling `while_waiting` until it is free; yield the locked file.

    The empty file is not removed, because another process may be waiting for it.
    """
    with lock.open("ab") as file:
        while not _is_ours(file):
            while_waiting()
            time.sleep(POLL_SECONDS)
        yield file


if sys.platform == "win32":

    def _is_ours(file: IO[bytes]) -> bool:
        """Try to acquire the lock until the file is closed. The lock covers one byte, which need not exist."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:

    def _is_ours(file: IO[bytes]) -> bool:
        """Try to acquire the lock until the file is closed."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
