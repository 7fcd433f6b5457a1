"""Plain files: read without waiting for what is none, such as a pipe that nobody writes to."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["opened_plain", "read_plain"]

_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would else change the ends of lines
_AT_ONCE: int = getattr(os, "O_NONBLOCK", 0)  # to open a pipe waits for its writer


def opened_plain(path: Path) -> BinaryIO:
    """Returns a file opened for reading. ValueError if it is a pipe, a device, a socket or a folder.

    What was opened is looked at, not the name: another process may change what the name means in between.
    """
    opened = os.open(path, os.O_RDONLY | _BINARY | _AT_ONCE)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError(f"{path.name} is no plain file")
    return open(opened, "rb")  # noqa: PTH123


def read_plain(path: Path, most_bytes: int | None = None) -> bytes:
    """Returns the bytes of a file. ValueError if it is none, or has more than `most_bytes`."""
    with opened_plain(path) as file:
        if most_bytes is not None and os.fstat(file.fileno()).st_size > most_bytes:
            raise ValueError(f"{path.name} has more than {most_bytes} bytes")
        return file.read()
