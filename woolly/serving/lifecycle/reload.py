"""Reload of changed key and certificate files while the server runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from woolly.errors import WoollyError
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.observability.logs import log
from woolly.serving.settings.checks import check_keys
from woolly.serving.settings.table import Settings

Stamp = tuple[int, int, int] | None  # inode, time and size of a file; None if it cannot be read


def key_files(settings: Settings) -> tuple[Path, ...]:
    """Return the configured key files."""
    files = (settings.keys_file, settings.api_key_file, settings.admin_key_file)
    return tuple(file for file in files if file is not None)


class Reloader:
    """Reloads files at SIGHUP or when they change. Unusable files leave the current state unchanged."""

    def __init__(self, settings: Settings, authenticator: Authenticator) -> None:
        self._settings = settings
        self._authenticator = authenticator
        self._parts: list[tuple[str, Sequence[Path], Callable[[], None]]] = []
        self._seen: dict[Path, Stamp] = {}
        if files := key_files(settings):
            self.add("keys", files, self._read_keys)

    def add(self, what: str, files: Sequence[Path], read: Callable[[], None]) -> None:
        """Add files that `read` reloads; `what` names them in the log."""
        self._parts.append((what, files, read))
        self._seen |= {file: _stamp(file) for file in files}

    @property
    def is_needed(self) -> bool:
        """True if there is a file to reload."""
        return bool(self._parts)

    def reload(self) -> None:
        """Reload all files."""
        self._read(self._parts)

    def check(self) -> None:
        """Reload files that have changed since they were read."""
        changed = [part for part in self._parts if any(self._seen[file] != _stamp(file) for file in part[1])]
        self._read(changed)

    def _read(self, parts: Sequence[tuple[str, Sequence[Path], Callable[[], None]]]) -> None:
        for what, files, read in parts:
            self._seen |= {file: _stamp(file) for file in files}
            try:
                read()
                log.info(f"{what} reloaded")
            except (WoollyError, OSError) as error:
                log.error(f"{what} not reloaded; the previous {what} remain in use", extra={"reason": str(error)})

    def _read_keys(self) -> None:
        self._authenticator.set_keys(*check_keys(self._settings))


def _stamp(file: Path) -> Stamp:
    try:
        status = file.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    except OSError:
        return None


def has_terminal() -> bool:
    """Return True if the process can open its terminal. SIGHUP means a closed terminal otherwise."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | getattr(os, "O_NOCTTY", 0)))
        return True
    except OSError:
        return False
