"""Atomic file writes, also if the process is killed or the power fails; and reads of regular files.

Reads regular files only; a FIFO would block.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would else change the ends of lines
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)  # to open a pipe waits for its writer


@contextlib.contextmanager
def atomic_write(path: Path, *, mode: int = 0o666, aside: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` atomically when the block ends.

    It is written to another name, synced and renamed. If the block or the disk fails, `path` is unchanged and the
    temporary file is removed. `aside` is the temporary name, by default a new one ending in .tmp: only a killed process
    leaves it behind. The system's umask applies to `mode`.
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
        os.fsync(file.fileno())  # else a power cut could leave the name without the bytes
    written.replace(path)


def open_regular_file(path: Path) -> BinaryIO:
    """Returns a file opened for reading. ValueError if it is a pipe, a device, a socket or a folder.

    What was opened is looked at, not the name: another process may change what the name means in between.
    """
    opened = os.open(path, os.O_RDONLY | _BINARY | _NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError(f"{path.name} is not a plain file")
    return open(opened, "rb")  # noqa: PTH123


def read_regular_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a regular file. ValueError for other files, or for more than `max_bytes`."""
    with open_regular_file(path) as file:
        if max_bytes is not None and os.fstat(file.fileno()).st_size > max_bytes:
            raise ValueError(f"{path.name} has more than {max_bytes} bytes")
        return file.read()
