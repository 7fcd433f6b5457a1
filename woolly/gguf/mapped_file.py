"""Files mapped read-only into memory."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.errors import GGUFError, ModelError


class FileMap:
    """Bytes of a mapped file.

    Every view keeps the map alive through NumPy's base chain. Closing therefore only drops this reference, and the
    memory is unmapped with the last view.
    """

    __slots__ = ("_bytes", "_watch", "identity", "n_bytes", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Check before opening, because opening a FIFO would block.
            kind = stat.S_IFMT(path.stat().st_mode)
            if kind != stat.S_IFREG:
                what = "a directory" if kind == stat.S_IFDIR else "not a regular file"
                raise GGUFError(f"{path}: the path is {what}; expected a GGUF file")
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not status.st_size:
                    raise GGUFError(f"{path}: the file is empty, not a GGUF file; fetch it again (at byte 0)")
                mapped = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
                self._bytes: NDArray[np.uint8] | None = np.frombuffer(mapped, dtype=np.uint8)
        except FileNotFoundError:
            raise GGUFError(f"{path}: no such file; expected the path of a GGUF file") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise GGUFError(f"{path}: cannot read the file ({reason})") from error
        self._watch = _native.watch_file(self._bytes)
        weakref.finalize(mapped, _native.unwatch_file, self._watch).atexit = False
        self.n_bytes = len(self._bytes)
        self.identity = (status.st_dev, status.st_ino)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Complete file, read-only. Raises GGUFError after closing."""
        if self._bytes is None:
            raise GGUFError(f"{self.path}: the file is closed; open it again")
        return self._bytes

    def check(self) -> None:
        """Raise ModelError if the file was truncated and the missing part was read as zeros."""
        if self._bytes is not None and _native.is_file_lost(self._watch):
            raise ModelError(
                f"{self.path}: the model file changed while in use; replace files by renaming, and open the model"
                " again",
                code="file_changed",
            )

    def close(self) -> None:
        """Drop the map. Existing views stay valid."""
        self._bytes = None


class MemoryMap(FileMap):
    """Bytes of an array instead of a file, for computed tensors."""

    __slots__ = ()

    def __init__(self, name: str, array: NDArray[np.float32] | NDArray[np.uint8]) -> None:
        self.path = Path(name)
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._watch = -1
        self.n_bytes = len(self._bytes)
        self.identity = (0, 0)

    def check(self) -> None:
        """Do nothing: memory cannot be truncated."""


class LazyMap(MemoryMap):
    """Bytes of an array that is computed from a file on first read, and cached until closing."""

    __slots__ = ("_make", "_source")

    def __init__(self, source: FileMap, n_bytes: int, make: Callable[[], NDArray[np.float32]]) -> None:
        """Create the map. `make` reads `source` and returns an array of `n_bytes`."""
        self._source, self._make = source, make
        self._bytes = None
        self._watch = -1
        self.path, self.identity, self.n_bytes = source.path, source.identity, n_bytes

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Bytes of the array. Raises GGUFError after the file is closed."""
        if self._bytes is None:
            self._bytes = self._make().reshape(-1).view(np.uint8)
        return self._bytes

    def check(self) -> None:
        """Check the underlying file."""
        self._source.check()
