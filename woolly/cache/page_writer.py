"""PageWriter: writes copies of pages to a folder in background threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from woolly.cache.page_folder import PageFolder

Bytes = npt.NDArray[np.uint8]

_MAX_BYTES = 64 << 20  # maximum size of the copies that wait for writing


class PageWriter:
    """Queue of copies for a folder, limited by their size. A file that is being written is not queued again."""

    def __init__(self, folder: PageFolder, pool: Executor) -> None:
        self.written_bytes = 0  # since the start
        self._folder = folder
        self._pool = pool
        self._n_bytes = 0  # size of the waiting copies
        self._under_way: set[tuple[str, bytes]] = set()
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """True if no copy waits."""
        return self._n_bytes == 0

    @property
    def is_full(self) -> bool:
        """True if the disk does not keep up."""
        return self._n_bytes >= _MAX_BYTES

    def write(self, kind: str, digest: bytes, read: Callable[[], Bytes], depth: int) -> None:
        """Copy the data of a file with `read`, and queue the copy."""
        if (kind, digest) in self._under_way:
            return
        data = read()
        with self._lock:
            self._under_way.add((kind, digest))
            self._n_bytes += len(data)

        def work() -> None:
            try:
                if self._folder.write(kind, digest, data, depth):
                    self.written_bytes += len(data)
            finally:
                with self._lock:
                    self._under_way.discard((kind, digest))
                    self._n_bytes -= len(data)

        self._pool.submit(work)
