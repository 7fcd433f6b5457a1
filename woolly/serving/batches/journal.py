"""Journal: answers of a batch in order of completion, in a file that survives the process."""

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

_SYNC = 1.0  # seconds between two syncs: answers lost in a power cut are computed again

# Prefixes of a first record that was cut short by a kill, or by a power cut (zeros).
_TORN = re.compile(rb"[0-9a-f]{1,8}|[0-9a-f]{8} (\[[^\n]*)?|\0+", re.DOTALL)


class JournalTaken(RequestError):  # noqa: N818 - the name says who has it
    """Another process writes the journal."""


@dataclass(frozen=True)
class Note:
    """Position of a row's answer in the journal."""

    key: str
    is_good: bool
    at: int  # offset of the line
    length: int


class Journal:
    """Appends one line per row: a checksum, then JSON with the row's number, its key and its line of the output.

    A line is written by one call and read back by its checksum. A killed process thus leaves complete lines and
    at most one torn line at the end, which is dropped. If a number occurs twice, the last line counts.
    """

    def __init__(self, path: Path, take_room: Callable[[int], None] = lambda n_bytes: None) -> None:
        """Open or create a journal. JournalTaken if another process writes it, OSError if it cannot be written.

        RequestError if the file is not a journal. `take_room` is called before bytes are added, and may
        raise.
        """
        self._take_room = take_room
        self.path = path
        self._lock = path.with_name(f"{path.name}.lock")  # separate file: a locked file cannot be read on Windows
        self.notes: dict[int, Note] = {}
        self.n_good = 0
        self._stack = ExitStack()
        self._is_stack = False
        try:
            self._take()
            opened = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)  # private as prompts
            self._file = self._stack.enter_context(open(opened, "r+b", buffering=0))  # noqa: PTH123, SIM115
            self._end = self._read()
            self._file.truncate(self._end)
        except BaseException:
            self.close()
            raise
        self._synced = time.monotonic()

    def add(self, number: int, key: str, is_good: bool, line: dict[str, Any]) -> None:
        """Append the answer of a row. After an OSError (such as a full disk) or without room, the journal lacks it."""
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
        """Sync the added lines to disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def lines(self, is_good: bool) -> Iterator[dict[str, Any]]:
        """Yield the output lines of successful or of failed rows, in the order of the rows."""
        for number in sorted(self.notes):
            note = self.notes[number]
            if note.is_good == is_good:
                self._file.seek(note.at)
                yield json.loads(self._file.read(note.length)[9:])[3]

    def keep(self, n_rows: int) -> None:
        """Forget rows from this number on, if the input became shorter."""
        self.notes = {number: note for number, note in self.notes.items() if number < n_rows}
        self.n_good = sum(note.is_good for note in self.notes.values())

    def remove(self) -> None:
        """Removes the file: its lines are in the output."""
        self._file.close()  # Windows removes no open file
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Closes the file, which stays."""
        was_stack, self._is_stack = self._is_stack, False
        if was_stack and sys.platform != "win32":
            self._lock.unlink(missing_ok=True)  # while locked: a later owner's file is never removed
        self._stack.close()
        if was_stack and sys.platform == "win32":
            with suppress(OSError):  # another process has it open
                self._lock.unlink()

    def _take(self) -> None:
        """Takes the lock. Its file is removed when the lock is released, so the one that was locked may be gone."""

        def taken() -> None:
            raise JournalTaken(f"{self.path} is being written by another process; wait for it, or name another output")

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
        """Read complete lines and return the offset of their end."""
        at = 0
        with self.path.open("rb") as file:
            for record in file:
                text = record[9:-1]
                if not record.endswith(b"\n") or record[:9] != b"%08x " % zlib.crc32(text):
                    if at == 0 and not _TORN.fullmatch(record):
                        raise RequestError(f"{self.path} has something else than answers; move it, or name another OUT")
                    break
                number, key, is_good, _ = json.loads(text)
                self._note(number, Note(key, is_good, at, len(record)))
                at += len(record)
        return at
