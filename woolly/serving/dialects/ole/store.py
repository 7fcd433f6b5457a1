"""Chats in a SQLite file. Completed answers are on disk, even after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from woolly.errors import RequestError
from woolly.serving.dialects.ole.reserved_space import ReservedSpace
from woolly.serving.errors import ApiError
from woolly.serving.observability.logs import log

Message = Mapping[str, Any]
Result = TypeVar("Result")

_FULL = "storage_full"
_VERSION = 1
_TABLES = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    last_accessed REAL NOT NULL,
    model_name TEXT NOT NULL,
    context_length INTEGER NOT NULL,
    max_context_length INTEGER NOT NULL,
    metadata TEXT NOT NULL
);
CREATE INDEX sessions_by_owner ON sessions (owner, last_accessed);
CREATE TABLE messages (
    session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;
"""
_COLUMNS = (
    "id, created_at, last_accessed, model_name, context_length, max_context_length, metadata,"
    " (SELECT count(*) FROM messages WHERE session = sessions.id)"
)

# Clients that create sessions in a loop must not fill the disk, whatever keys they use.
_MAX_SESSIONS = 10_000
_MAX_METADATA_BYTES = 16 * 1024

_MAX_INTEGER = 2**63 - 1  # maximum in SQLite; a model file may declare a longer context

# A session that was not used for this long is shown as inactive, but not deleted.
_ACTIVE_SECONDS = 3600.0


@dataclass(frozen=True)
class Session:
    """A stored chat without its messages."""

    id: str
    created_at: float  # seconds since 1970
    last_accessed: float
    model_name: str
    context_length: int  # tokens of the chat after the last answer
    max_context_length: int
    metadata: Mapping[str, Any]
    message_count: int

    @property
    def active(self) -> bool:
        """True if the session was used within the last hour."""
        return time.time() - self.last_accessed < _ACTIVE_SECONDS


class SessionStore:
    """Thread-safe store of sessions. Each owner sees and changes only their own sessions.

    The event loop calls `ask`, which uses a single thread. A lock serializes the calls anyway, and a slow disk must not
    occupy the threads of other requests.
    """

    def __init__(self, path: Path | None, *, max_sessions: int = 1000, max_bytes: int = 1 << 20) -> None:
        """Open or create the file; None stores the sessions in memory.

        An owner can have up to `max_sessions` sessions; the messages of a session may total at most `max_bytes`.
        """
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        if path is not None:
            _create_private(path)
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="woolly-sessions")
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            # A locked or read-only file is not damaged.
            if path is None or isinstance(error, sqlite3.OperationalError):
                raise _unusable(path, str(error)) from error
            _set_aside(path, str(error))
            _create_private(path)
            self._open(path)

    def _open(self, path: Path | None) -> None:
        self._db = sqlite3.connect(
            ":memory:" if path is None else path, check_same_thread=False, isolation_level=None, timeout=10.0
        )
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            # One write per answer is fast compared with the answer, and FULL also protects confirmed messages from a
            # power failure.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            # In pages. A short log leaves space for deletions on a full disk.
            self._db.execute("PRAGMA wal_autocheckpoint = 32")
            self._make_tables()
            self._reserve = ReservedSpace(path)
        except BaseException:
            self._db.close()
            raise

    async def ask(self, method: Callable[..., Result], *args: Any, **named: Any) -> Result:
        """Run a method on the store's thread, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(method, *args, **named))

    def create(
        self,
        owner: str,
        *,
        model_name: str,
        max_context_length: int,
        metadata: Mapping[str, Any] | None = None,
        messages: Sequence[Message] = (),
    ) -> Session:
        """Create a session with these messages.

        Raises ApiError 409 if the owner or the server has too many sessions, 413 if the messages are too long.
        """
        text = _metadata(metadata or {})
        self._check_size(0, messages, "system_prompt")
        id, now = secrets.token_urlsafe(16), time.time()
        with self._transaction() as db:
            (n,) = db.execute("SELECT count(*) FROM sessions WHERE owner = ?", (owner,)).fetchone()
            if n >= self._max_sessions:
                raise ApiError(
                    409,
                    "session_limit_reached",
                    f"this client has {n} sessions; the limit is {self._max_sessions}",
                    suggestion="Delete sessions that are no longer needed.",
                )
            (n,) = db.execute("SELECT count(*) FROM sessions").fetchone()
            if n >= _MAX_SESSIONS:
                raise ApiError(
                    409,
                    "session_limit_reached",
                    f"the server has reached its limit of {_MAX_SESSIONS} sessions",
                    suggestion="Delete sessions that are no longer needed.",
                )
            db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, 0, ?, ?)",
                (id, owner, now, now, model_name, min(max_context_length, _MAX_INTEGER), text),
            )
            self._write(db, id, 0, messages)
            return self._find(db, owner, id)

    def get(self, owner: str, id: str) -> Session:
        """Return a session. Raises ApiError 404 if the owner has no such session."""
        with self._transaction() as db:
            return self._find(db, owner, id)

    def all(self, owner: str) -> list[Session]:
        """Return all sessions of an owner, last used first."""
        with self._transaction() as db:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM sessions WHERE owner = ? ORDER BY last_accessed DESC, id", (owner,)
            )
            return [_session(row) for row in rows]

    def messages(self, owner: str, id: str) -> list[Message]:
        """Return the messages of a session."""
        with self._transaction() as db:
            self._find(db, owner, id)
            rows = db.execute("SELECT body FROM messages WHERE session = ? ORDER BY position", (id,))
            return [json.loads(body) for (body,) in rows]

    def check_room(self, owner: str, id: str, messages: Sequence[Message]) -> None:
        """Raise ApiError 413 if the messages would exceed the session's limit. Answers are always stored."""
        with self._transaction() as db:
            self._find(db, owner, id)
            (n,) = db.execute("SELECT total(length(body)) FROM messages WHERE session = ?", (id,)).fetchone()
        self._check_size(int(n), messages, "messages")

    def append(
        self, owner: str, id: str, messages: Sequence[Message], *, after: int, context_length: int, model_name: str
    ) -> Session:
        """Append a message and its answer, both or neither, after the first `after` messages."""
        with self._transaction() as db:
            if self._find(db, owner, id).message_count != after:
                raise ApiError(
                    409,
                    "session_conflict",
                    f"the session {id!r} changed during this answer, so the answer was not stored",
                    suggestion="Send one message of a session at a time.",
                )
            self._write(db, id, after, messages)
            db.execute(
                "UPDATE sessions SET last_accessed = ?, context_length = ?, model_name = ? WHERE id = ?",
                (time.time(), context_length, model_name, id),
            )
            return self._find(db, owner, id)

    def delete(self, owner: str, id: str) -> None:
        """Delete a session and its messages. A deletion succeeds even on a full disk."""
        try:
            self._delete(owner, id)
        except ApiError as error:
            if error.code != _FULL:
                raise
            with self._reserve.released():
                self._shrink_log()
                self._delete(owner, id)
                self._shrink_log()

    def close(self) -> None:
        """Close the file; later calls raise."""
        self._thread.shutdown()
        with self._lock:
            self._db.close()

    def _shrink_log(self) -> None:
        """Checkpoint SQLite's log into the file, as far as space permits."""
        with self._lock, suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _delete(self, owner: str, id: str) -> None:
        with self._transaction() as db:
            self._find(db, owner, id)
            db.execute("DELETE FROM sessions WHERE id = ?", (id,))

    def _check_size(self, n_kept: int, messages: Sequence[Message], param: str) -> None:
        n_bytes = sum(len(_body(message)) for message in messages)
        if n_kept + n_bytes > self._max_bytes:
            kept = f" in addition to {n_kept} in the session" if n_kept else ""
            raise ApiError(
                413,
                "session_too_large",
                f"{param} needs {n_bytes} bytes{kept}; the limit is {self._max_bytes}",
                param=param,
                suggestion="Create another session, or send less.",
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction, one thread at a time."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:  # a full disk may have ended the transaction
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise _storage_error(error) from error
                raise

    def _make_tables(self) -> None:
        # One transaction creates all tables, so that a killed process leaves an empty file, not some of the tables.
        with self._transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise RequestError(f"the sessions file has version {version}; expected {_VERSION}")
            if version == 0:
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")

    @staticmethod
    def _find(db: sqlite3.Connection, owner: str, id: str) -> Session:
        # SQLite cannot store such an id.
        row = None
        if id.isascii() and id.isprintable():
            row = db.execute(f"SELECT {_COLUMNS} FROM sessions WHERE id = ? AND owner = ?", (id, owner)).fetchone()
        if row is None:
            raise ApiError(
                404,
                "session_not_found",
                f"unknown session {id[:64]!r}",
                suggestion="List sessions with GET /api/v1/sessions, or create one with POST /api/v1/sessions.",
            )
        return _session(row)

    @staticmethod
    def _write(db: sqlite3.Connection, id: str, first: int, messages: Sequence[Message]) -> None:
        bodies = map(_body, messages)
        db.executemany(
            "INSERT INTO messages VALUES (?, ?, ?)", ((id, first + i, body) for i, body in enumerate(bodies))
        )


def _storage_error(error: sqlite3.OperationalError) -> ApiError:
    """Return the error for a file that cannot be written."""
    log.error("sessions cannot be stored", extra={"reason": str(error)})
    if "full" in str(error):
        return ApiError(
            507,
            _FULL,
            "the disk of the sessions file is full",
            suggestion="Delete sessions that are no longer needed, or chat without a session.",
        )
    return ApiError(503, "storage_failed", f"the sessions cannot be stored: {error}", retry_after=5.0)


def _body(message: Message) -> str:
    """Serialize a message as ASCII JSON, so that its length is its size in bytes."""
    return json.dumps(dict(message))


def _metadata(metadata: Mapping[str, Any]) -> str:
    """Serialize metadata as ASCII JSON, because SQLite cannot store unpaired surrogates."""
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except ValueError:
        raise ApiError(
            400, "invalid_request", "metadata has a number that JSON cannot represent", param="metadata"
        ) from None
    if len(text) > _MAX_METADATA_BYTES:
        raise ApiError(
            400,
            "invalid_request",
            f"metadata has {len(text)} bytes; the limit is {_MAX_METADATA_BYTES}",
            param="metadata",
        )
    return text


def _session(row: tuple[Any, ...]) -> Session:
    id, created, accessed, model, length, longest, metadata, count = row
    return Session(id, created, accessed, model, length, longest, json.loads(metadata), count)


def check_sessions_file(path: Path | None) -> None:
    """Raise RequestError if a sessions file cannot be opened; set a damaged file aside."""
    if path is not None:
        SessionStore(path, max_sessions=1, max_bytes=1).close()


def _create_private(path: Path) -> None:
    """Create a missing file with private permissions, which SQLite also applies to its side files."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _unusable(path: Path | None, reason: str) -> RequestError:
    return RequestError(f"cannot open the sessions file {path}: {reason}; choose another with --sessions-file")


def _set_aside(path: Path, reason: str) -> None:
    """Rename a damaged database and its side files, so that the server starts with a new one."""
    damaged = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in ("", "-wal", "-shm"):
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.replace(damaged.with_name(damaged.name + suffix))
    log.warning(f"sessions file damaged ({reason}); renamed to {damaged}; starting with an empty file")
