"""Atomic file writes, which survive killed processes and power failures, and reads of regular files.

Only regular files are read, because opening a FIFO would block.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would otherwise convert line endings
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)  # opening a pipe waits for a writer


@contextlib.contextmanager
def atomic_write(path: Path, *, mode: int = 0o666, aside: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` atomically when the block ends.

    The file is written under another name, synced and renamed. If the block or the disk fails, `path` is unchanged and
    the temporary file is removed; only a killed process leaves it. `aside` is the temporary name, by default a new name
    that ends with .tmp. The system's umask applies to `mode`.
    """
    other = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp") if aside is None else aside
    try:
        with open(os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, mode), "wb") as file:  # noqa: PTH123
            yield file
            file.flush()
            os.fsync(file.fileno())
        other.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            other.unlink()
        raise


def fsync_and_rename(written: Path, path: Path) -> None:
    """Sync a temporary file, and rename it."""
    with written.open("r+b") as file:
        os.fsync(file.fileno())  # otherwise a power failure could leave an empty file
    written.replace(path)


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raise ValueError for a pipe, device, socket or folder.

    Checks the opened file instead of its name, because another process may replace the file in between.
    """
    opened = os.open(path, os.O_RDONLY | _BINARY | _NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError(f"{path.name} is not a regular file")
    return open(opened, "rb")  # noqa: PTH123


def read_regular_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a regular file. Raise ValueError for other files, or for more than `max_bytes`."""
    with open_regular_file(path) as file:
        if max_bytes is not None and os.fstat(file.fileno()).st_size > max_bytes:
            raise ValueError(f"{path.name} has more than {max_bytes} bytes")
        return file.read()
