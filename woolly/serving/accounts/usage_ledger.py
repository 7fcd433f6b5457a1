"""Usage by day, key and model, in a SQLite file.

The file has one row per day (UTC), key and model, so one year of a team's usage takes a few thousand rows. The file
stores no prompts or answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from woolly.errors import RequestError
from woolly.serving.observability.logs import log

GROUPS = ("key", "model", "day")  # columns to group usage by
_EVERY = 2.0  # seconds between writes, and of usage lost if the process is killed
_WAIT = 10.0  # seconds to wait for another process that writes

_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class KeyUsage:
    """Number of requests, prompt tokens (including cached tokens) and completion tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens that count toward limits."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: KeyUsage) -> KeyUsage:
        return KeyUsage(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(KeyUsage)))


_SUMS = tuple(one.name for one in fields(KeyUsage))
_ADD = f"INSERT INTO usage VALUES (?, ?, ?, {', '.join('?' for _ in _SUMS)}) ON CONFLICT DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in _SUMS
)


class UsageLedger:
    """Collects usage on the event loop thread, and writes it on another thread every two seconds and at the end."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Raise RequestError if the file cannot be opened or is not a usage file."""
        self._path = path
        self._clock = clock
        self._pending: dict[tuple[str, str, str], KeyUsage] = {}
        self._writing = threading.Lock()
        self._flushing = asyncio.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            with self._open() as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise RequestError(f"usage_file is {path}, which cannot be used: {error}", field="usage_file") from None

    def note(self, key: str, model: str, used: KeyUsage) -> None:
        """Add the usage of a request."""
        place = (self.day, key, model)
        self._pending[place] = self._pending.get(place, KeyUsage()) + used

    @property
    def day(self) -> str:
        """Return the current day in UTC."""
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))

    async def run(self) -> None:
        """Write new usage regularly, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.flush()

    async def flush(self) -> None:
        """Wait for any write in progress, then write new usage; the next flush retries failed writes.

        A write continues if the caller is cancelled.
        """
        await asyncio.shield(asyncio.ensure_future(self._flush()))

    async def _flush(self) -> None:
        async with self._flushing:
            if not self._pending:
                return
            pending, self._pending = self._pending, {}
            try:
                await asyncio.to_thread(self._write, pending)
            except sqlite3.Error as error:
                log.error("usage not written", extra={"file": str(self._path), "reason": str(error)})
                for place, used in pending.items():
                    self._pending[place] = self._pending.get(place, KeyUsage()) + used

    async def read(self, by: Sequence[str], **wanted: str | None) -> list[dict[str, Any]]:
        """Return usage, including usage not written yet; see `read_usage`."""
        await self.flush()
        return await asyncio.to_thread(read_usage, self._path, by, **wanted)

    def usage_today(self) -> dict[str, KeyUsage]:
        """Return today's usage of each key."""
        rows = read_usage(self._path, ("key",), since=self.day)
        return {row["key"]: KeyUsage(*(row[name] for name in _SUMS)) for row in rows}

    def _write(self, pending: dict[tuple[str, str, str], KeyUsage]) -> None:
        rows = [(*place, *(getattr(used, name) for name in _SUMS)) for place, used in pending.items()]
        with self._writing, self._open() as database:
            database.executemany(_ADD, rows)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=_WAIT)) as database, database:
            yield database


def read_usage(
    path: Path,
    by: Sequence[str],
    *,
    key: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> list[dict[str, Any]]:
    """Return the usage between two days (inclusive), grouped by columns of GROUPS.

    Raises RequestError for an unknown group. The file may be in use by a running server.
    """
    wrong = [group for group in by if group not in GROUPS]
    if wrong or len(set(by)) < len(by):
        raise RequestError(f"by is {','.join(by)}; expected some of {', '.join(GROUPS)}, each once", field="by")
    for name, day in (("since", since), ("until", until)):
        if day is not None and not _is_day(day):
            raise RequestError(f"{name} is {day!r}; expected a day such as 2026-11-30", field=name)
    columns = ", ".join((*by, *(f"SUM({name})" for name in _SUMS)))
    # Column names come from GROUPS; values are bound.
    query = f"SELECT {columns} FROM usage WHERE key = coalesce(?, key) AND day >= ? AND day <= ?"
    if by:
        query += f" GROUP BY {', '.join(by)} ORDER BY {', '.join(by)}"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_WAIT)) as database:
            rows = database.execute(query, (key, since or "", until or "9999")).fetchall()
    except sqlite3.Error as error:
        raise RequestError(f"cannot read the usage file {path}: {error}") from None
    names = (*by, *_SUMS)
    return [dict(zip(names, row, strict=True)) for row in rows if row[-1] is not None]


def _is_day(text: str) -> bool:
    try:
        return time.strftime("%Y-%m-%d", time.strptime(text, "%Y-%m-%d")) == text
    except ValueError:
        return False
