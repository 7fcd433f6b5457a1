"""One file, mapped read-only into memory."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woolly.errors import GGUFError

__all__ = ["FileMap"]


class FileMap:
    """The bytes of a file.

    Every view holds the map alive through NumPy's base chain, so closing only drops this reference:
    the memory is unmapped when the last view is gone, and no view ever dangles.
    """

    __slots__ = ("_bytes", "identity", "n_bytes", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Looked at before it is opened: opening a FIFO would wait for its writer.
            kind = stat.S_IFMT(path.stat().st_mode)
            if kind != stat.S_IFREG:
                what = "a directory" if kind == stat.S_IFDIR else "not a regular file"
                raise GGUFError(f"{path}: this is {what}; expected a GGUF file")
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not status.st_size:
                    raise GGUFError(f"{path}: at byte 0: the file is empty; expected the magic 'GGUF'")
                self._bytes: NDArray[np.uint8] | None = np.frombuffer(
                    mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ), dtype=np.uint8
                )
        except FileNotFoundError:
            raise GGUFError(f"{path}: there is no such file; expected the path of a GGUF file") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise GGUFError(f"{path}: the file cannot be read ({reason})") from error
        self.n_bytes = len(self._bytes)
        self.identity = (status.st_dev, status.st_ino)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The whole file, read-only; GGUFError once closed."""
        if self._bytes is None:
            raise GGUFError(f"{self.path}: this file is closed; open it again to read from it")
        return self._bytes

    def close(self) -> None:
        """Drop the map; views that were handed out stay valid."""
        self._bytes = None
