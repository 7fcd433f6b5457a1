"""Answers of a batch in order of completion, in a file that survives the process."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woolly.errors import RequestError
from woolly.machine.file_lock import file_lock

_SYNC = 1.0  # seconds between syncs; a power failure loses answers since the last sync, which are then computed again

# Incomplete first record, truncated by a kill or filled with zeros by a power failure.
_TORN = re.compile(rb"[0-9a-f]{1,8}|[0-9a-f]{8} (\[[^\n]*)?|\0+", re.DOTALL)


class JournalLocked(RequestError):  # noqa: N818 - the exception is not an internal error
    """Raised if another process is writing to the journal."""


@dataclass(frozen=True)
class Note:
    """Position of a row's answer in the journal."""

    key: str
    is_good: bool
    at: int  # offset of the line
    length: int


class Journal:
    """Append-only file with one line per row: a checksum, then JSON with row number, key and output line.

    Each line is written with one call and verified by its checksum. A killed process leaves complete lines and at most
    one incomplete line at the end, which is dropped. If a row occurs twice, its last line is used.
    """

    def __init__(self, path: Path, take_room: Callable[[int], None] = lambda n_bytes: None) -> None:
        """Open or create a journal.

        Raises JournalLocked if another process is writing to the journal, OSError if the file is not writable. Raises
        RequestError if the file is not a journal. `take_room` is called before bytes are added, and may raise.
        """
        self._take_room = take_room
        self.path = path
        self._lock = path.with_name(f"{path.name}.lock")  # separate file: Windows cannot read a locked file
        self.notes: dict[int, Note] = {}
        self.n_good = 0
        self._stack = ExitStack()
        self._is_stack = False
        try:
            self._take()
            opened = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)  # contains prompts
            self._file = self._stack.enter_context(open(opened, "r+b", buffering=0))  # noqa: PTH123, SIM115
            self._end = self._read()
            self._file.truncate(self._end)
        except BaseException:
            self.close()
            raise
        self._synced = time.monotonic()

    def add(self, number: int, key: str, is_good: bool, line: dict[str, Any]) -> None:
        """Append the answer of a row. On an error, such as a full disk, the journal stays unchanged."""
        data = json.dumps([number, key, is_good, line], ensure_ascii=False, separators=(",", ":"))
        text = data.encode("utf-8", "replace")
        record = b"%08x %s\n" % (zlib.crc32(text), text)
        self._take_room(len(record))
        self._file.seek(self._end)
        try:
            written = 0
            while written < len(record):
                written += self._file.write(record[written:]) or 0
        except OSError:
            self._file.truncate(self._end)
            raise
        self._note(number, Note(key, is_good, self._end, len(record)))
        self._end += len(record)
        if time.monotonic() - self._synced > _SYNC:
            self.sync()

    def sync(self) -> None:
        """Flush the added lines to disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def lines(self, is_good: bool) -> Iterator[dict[str, Any]]:
        """Yield the output lines of successful or failed rows, in row order."""
        for number in sorted(self.notes):
            note = self.notes[number]
            if note.is_good == is_good:
                self._file.seek(note.at)
                yield json.loads(self._file.read(note.length)[9:])[3]

    def keep(self, n_rows: int) -> None:
        """Remove rows from `n_rows` on, if the input became shorter."""
        self.notes = {number: note for number, note in self.notes.items() if number < n_rows}
        self.n_good = sum(note.is_good for note in self.notes.values())

    def remove(self) -> None:
        """Remove the file when its lines have been written to the output."""
        self._file.close()  # Windows cannot remove open files
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file without removing it."""
        was_stack, self._is_stack = self._is_stack, False
        if was_stack and sys.platform != "win32":
            self._lock.unlink(missing_ok=True)  # while locked, so the file of a later owner is never removed
        self._stack.close()
        if was_stack and sys.platform == "win32":
            with suppress(OSError):  # another process has opened it
                self._lock.unlink()

    def _take(self) -> None:
        """Acquire the lock; retry if the previous owner removed the lock file."""

        def taken() -> None:
            raise JournalLocked(f"another process is writing {self.path}; wait for it, or choose another output")

        while not self._is_stack:
            file = self._stack.enter_context(file_lock(self._lock, taken))
            with suppress(FileNotFoundError):
                self._is_stack = os.path.samestat(os.fstat(file.fileno()), self._lock.stat())
            if not self._is_stack:
                self._stack.close()

    def _note(self, number: int, note: Note) -> None:
        before = self.notes.get(number)
        self.n_good += note.is_good - (before is not None and before.is_good)
        self.notes[number] = note

    def _read(self) -> int:
        """Read complete lines and return their end offset."""
        at = 0
        with self.path.open("rb") as file:
            for record in file:
                text = record[9:-1]
                if not record.endswith(b"\n") or record[:9] != b"%08x " % zlib.crc32(text):
                    if at == 0 and not _TORN.fullmatch(record):
                        raise RequestError(f"{self.path} is not a batch journal; move it, or choose another OUT")
                    break
                number, key, is_good, _ = json.loads(text)
                self._note(number, Note(key, is_good, at, len(record)))
                at += len(record)
        return at
