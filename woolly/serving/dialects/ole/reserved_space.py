"""File that reserves disk space, which is released on a full disk so that sessions can be deleted."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

_N_BYTES = 1 << 20  # maximum size of SQLite's log


class ReservedSpace:
    """File of zeros next to the sessions file; uses at most half of the free space."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the sessions file; None disables the reserve."""
        self._path = None if path is None else path.with_name(f"{path.name}-reserve")
        self._fill()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Release the space while the block runs."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        try:
            yield
        finally:
            self._fill()

    def _fill(self) -> None:
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            if not self._path.exists():
                n_bytes = min(_N_BYTES, shutil.disk_usage(self._path.parent).free // 2)
                self._path.write_bytes(bytes(n_bytes))
                self._path.chmod(0o600)
