"""Uploaded files, batches and their results, in a folder that survives restarts."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woolly.errors import RequestError
from woolly.serving.errors import ApiError
from woolly.store.safe_files import atomic_write, read_regular_file

Data = dict[str, Any]

ENDED = ("completed", "failed", "expired", "cancelled")

_MAX_OPEN_BATCHES = 100  # per owner
_MAX_ENDED_BATCHES = 1000  # per owner; the oldest are removed first
_MAX_FILES = 1000  # per owner
_OBJECT = 512  # approximate bytes of a file's JSON object
_MAX_OBJECT_BYTES = 1 << 20  # maximum bytes of a JSON object; usually a few thousand
_STALE = 3600.0  # seconds after which an incomplete file is abandoned

_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_KEYS = {"id", "status", "created_at", "owner"}  # required fields; objects without them are damaged and ignored

_SOUND = re.compile(r"(file|batch)[-_][0-9a-f]{32}")


@dataclass(frozen=True)
class _Known:
    """Cached JSON object."""

    mark: tuple[int, int, int]  # inode, time and size of the file, to detect changes
    n_bytes: int
    found: Data


class BatchStore:
    """Stores each object as a JSON file, next to the content of uploaded files.

    Objects are written atomically. Each owner sees only its own objects. The folder is private to the server's user.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """`max_bytes` limits the disk space of an owner's files, batches and journals together.

        A journal counts twice, because its answers are also written to the output when the batch ends.
        """
        self.folder = folder
        self._max_bytes = max_bytes
        self._known: dict[str, dict[str, _Known]] = {}  # most recently read objects, by kind and file name

    def prepare(self) -> None:
        """Create the folder. Raises RequestError on failure."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"cannot create batches_dir {self.folder}: {error.strerror}") from None

    def sweep(self) -> None:
        """Remove leftovers of killed processes: incomplete writes, and contents and journals without an object."""
        if not self.folder.is_dir():
            return
        open_ones = {batch["id"] for batch in self.unfinished()}
        before = time.time() - _STALE
        for path in self.folder.iterdir():
            is_content = path.suffix == ".jsonl" and not path.with_suffix(".json").exists()
            is_journal = path.suffix == ".part" and path.stem not in open_ones
            if is_content or is_journal or path.suffix in (".writing", ".tmp"):
                with suppress(OSError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    def new_id(self, kind: str) -> str:
        """Return a new id in OpenAI's format, file-... or batch_..."""
        return f"{kind}{'-' if kind == 'file' else '_'}{secrets.token_hex(16)}"

    def content(self, id: str) -> Path:
        """Return the path of a file's content."""
        return self.folder / f"{id}.jsonl"

    def journal(self, id: str) -> Path:
        """Return the path of a batch's journal, which stores the answers until the batch ends."""
        return self.folder / f"{id}.part"

    def add_file(self, owner: str, name: str, purpose: str, data: bytes) -> Data:
        """Store a file. Raises ApiError 413 if the owner has too many files or not enough space."""
        n_files = len(self.all_of(owner, "file"))
        if n_files >= _MAX_FILES:
            message = f"the limit of {_MAX_FILES} files is reached; delete some files first"
            raise ApiError(413, "too_many_files", message)
        self.check_room(owner, len(data) + _OBJECT)
        self.prepare()
        id = self.new_id("file")
        path = self.content(id)
        try:
            with atomic_write(path, mode=0o600) as file:
                file.write(data)
        except OSError as error:
            raise _full(error) from None
        try:
            return self.describe_file(owner, id, name, purpose)
        except ApiError:
            path.unlink(missing_ok=True)
            raise

    def describe_file(self, owner: str, id: str, name: str, purpose: str) -> Data:
        """Write and return the object of a file with existing content."""
        size = self.content(id).stat().st_size
        found = {"id": id, "object": "file", "bytes": size, "created_at": int(time.time()), "filename": name}
        found |= {"purpose": purpose, "status": "processed", "owner": owner}
        self.save(found)
        return found

    def new_batch(self, owner: str, endpoint: str, file_id: str, **more: Any) -> Data:
        """Return a new batch without storing it; `more` are additional fields."""
        return {
            "id": self.new_id("batch"),
            "object": "batch",
            "endpoint": endpoint,
            "errors": None,
            "input_file_id": file_id,
            "completion_window": "24h",
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": int(time.time()),
            "expires_at": None,
            **{f"{name}_at": None for name in _TIMES},
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": None,
            "owner": owner,
            **more,
        }

    def add_batch(self, batch: Data) -> None:
        """Store a batch.

        Raises ApiError 404 if its input is missing, 413 if the space is insufficient, 429 if too many batches are open.
        """
        owner = batch["owner"]
        self.get(owner, batch["input_file_id"], "file")
        self.check_room(owner, len(json.dumps(batch)))
        own = self.all_of(owner, "batch")
        ended = [one for one in own if one["status"] in ENDED]
        n_open = len(own) - len(ended)
        if n_open >= _MAX_OPEN_BATCHES:
            message = f"the limit of {_MAX_OPEN_BATCHES} open batches is reached; try again when a batch has ended"
            raise ApiError(429, "too_many_batches", message, retry_after=60.0)
        self.save(batch)
        for one in ended[_MAX_ENDED_BATCHES:]:
            self._forget(one)

    def save(self, found: Data) -> None:
        """Write an object to disk."""
        path = self.folder / f"{found['id']}.json"
        data = json.dumps(found).encode()
        try:
            with atomic_write(path, mode=0o600) as file:
                file.write(data)
        except OSError as error:
            raise _full(error) from None

    def get(self, owner: str, id: str, kind: str) -> Data:
        """Return an object. Raises ApiError 404 if the owner has no such object."""
        found = self._read(self.folder / f"{id}.json") if _SOUND.fullmatch(id) and id.startswith(kind) else None
        if found is None or found.get("owner") != owner:
            raise ApiError(404, "not_found", f"unknown {kind} {id[:80]!r}", param="id")
        return found

    def all_of(self, owner: str, kind: str) -> list[Data]:
        """Return all objects of an owner, newest first."""
        own = [found for found in self._all(kind) if found.get("owner") == owner]
        return sorted(own, key=lambda found: (found["created_at"], found["id"]), reverse=True)

    def unfinished(self) -> list[Data]:
        """Return the unfinished batches of all owners, oldest first."""
        open_ones = [one for one in self._all("batch") if one["status"] not in ENDED]
        return sorted(open_ones, key=lambda found: (found["created_at"], found["id"]))

    def delete_file(self, owner: str, id: str) -> None:
        """Delete a file. Raises ApiError 404 if the file does not exist, 409 if a batch needs it."""
        self.get(owner, id, "file")
        if any(batch.get("input_file_id") == id for batch in self.unfinished()):
            raise ApiError(409, "file_in_use", "an unfinished batch uses this file; cancel the batch first")
        (self.folder / f"{id}.json").unlink(missing_ok=True)
        self.content(id).unlink(missing_ok=True)

    def delete_batch(self, owner: str, id: str) -> None:
        """Delete a batch, but not the client's files.

        Raises ApiError 404 for an unknown batch, 409 for an unfinished batch.
        """
        batch = self.get(owner, id, "batch")
        if batch["status"] not in ENDED:
            raise ApiError(409, "batch_open", f"the batch is {batch['status']}; cancel it first")
        self._forget(batch)

    def _forget(self, batch: Data) -> None:
        if batch.get("owns_files"):
            for name in ("input", "output", "error"):
                if id := batch[f"{name}_file_id"]:
                    (self.folder / f"{id}.json").unlink(missing_ok=True)
                    self.content(id).unlink(missing_ok=True)
        (self.folder / f"{batch['id']}.json").unlink(missing_ok=True)

    def _taken(self, owner: str) -> int:
        """Return the disk space used by an owner: contents, journals and objects."""
        n_bytes = 0
        for kind, path_of, times in (("file", self.content, 1), ("batch", self.journal, 2)):
            for one in self._read_all(kind):
                if one.found.get("owner") == owner:
                    n_bytes += one.n_bytes
                    with suppress(OSError):
                        n_bytes += times * path_of(one.found["id"]).stat().st_size
        return n_bytes

    def check_room(self, owner: str, n_bytes: int) -> int:
        """Return the bytes that an owner may still store. Raises ApiError 413 if fewer than `n_bytes` are left."""
        taken = self._taken(owner)
        if taken + n_bytes > self._max_bytes:
            raise ApiError(
                413,
                "files_too_large",
                f"{n_bytes} bytes do not fit: {taken} of {self._max_bytes} bytes are used; delete some files first",
            )
        return self._max_bytes - taken

    def _all(self, kind: str) -> Iterator[Data]:
        for one in self._read_all(kind):
            yield dict(one.found)  # a copy, because the worker changes it

    def _read_all(self, kind: str) -> list[_Known]:
        """Return all objects of a kind; only new files are read. Objects are replaced, never changed in place."""
        before, after = self._known.get(kind, {}), {}
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if not (entry.name.startswith(kind) and entry.name.endswith(".json")):
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    mark = (status.st_ino, status.st_mtime_ns, status.st_size)
                    one = before.get(entry.name)
                    if one is None or one.mark != mark:
                        found = self._read(Path(entry.path))
                        one = None if found is None else _Known(mark, status.st_size, found)
                    if one is not None:
                        after[entry.name] = one
        self._known[kind] = after
        return list(after.values())

    def _read(self, path: Path) -> Data | None:
        try:
            found = json.loads(read_regular_file(path, _MAX_OBJECT_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and found.keys() >= _KEYS else None


def _full(error: OSError) -> ApiError:
    return ApiError(507, "not_stored", f"the server could not write to disk: {error.strerror}", retry_after=60.0)
