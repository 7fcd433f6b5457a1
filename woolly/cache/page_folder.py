"""PageFolder: cache pages and recurrent states as files that persist and are shared between processes.

The kind of a file is "page" (of the entries that see all tokens), "window0", "window1" (of those with each window) or
"state" (what recurrent layers keep after the page).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from woolly.store.safe_files import atomic_write, read_regular_file

Bytes = npt.NDArray[np.uint8]

# magic, version, identity, kind, digest, bytes of the payload, checksum of the payload; then a checksum of these.
_HEAD = struct.Struct("<8sI48s8s32sQ20s")
_SUM = 20
_MAGIC, _VERSION = b"WOOLLYKV", 1
_NAME = re.compile(r"([0-9a-f]{40})\.(page|state|window\d{1,2})")
_PIN = ".pin"

# Eviction continues down to this share of the bound, so that not every write evicts.
_TRIMMED = 0.9
_LOOKED = 1 / 16  # share of the bound written before this process lists the folder again
_PATIENCE = 60.0  # seconds after which it lists the folder in any case, or retries if pins left no room
_MIN_FREE_SHARE, _ENOUGH_FREE = 0.05, 2 << 30  # share of the disk to keep free, and its maximum in bytes


@dataclass(frozen=True)
class PageFile:
    """File of a folder."""

    path: Path
    identity: str
    digest: str  # in hexadecimal
    kind: str
    n_bytes: int
    used: float  # time of the last use
    rank: float  # the lowest rank is evicted first
    is_pinned: bool

    def fault(self) -> str | None:
        """Return the fault of the file; None if it is valid."""
        try:
            _parse(read_regular_file(self.path), self.identity, self.kind, bytes.fromhex(self.digest))
        except OSError as error:
            return error.strerror or "it cannot be read"
        except ValueError as error:
            return str(error)
        return None

    def unpin(self) -> None:
        """Remove the pin."""
        self.path.with_name(self.path.name + _PIN).unlink(missing_ok=True)


class PageFolder:
    """Files of one identity within a folder that several identities and processes share.

    A file is immutable, named by the digest of all tokens up to its page, and appears atomically: it is written under
    another name, synced and renamed. There is no separate index: the directory listing is the index. A file that is
    truncated, corrupt or unexpected is removed and counts as a miss, as does a file removed by another process.
    Any thread may call any method.
    """

    def __init__(self, folder: Path, identity: str, max_bytes: int) -> None:
        """`max_bytes` bounds the files of all identities in the folder."""
        self.root = folder
        self.identity = identity
        self.max_bytes = max_bytes
        self._own = folder / identity
        self._lock = threading.Lock()
        self._names: set[tuple[str, bytes]] = set()
        self._size = 0  # of all files, as far as this process knows
        self._unseen = 0  # bytes written since the last listing
        self._looked = self._refused = -_PATIENCE
        self._trimming = threading.Lock()
        self.n_damaged = 0
        self.refusal: str | None = None  # reason why the last write was skipped
        for path in (folder, self._own):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._survey()

    def __len__(self) -> int:
        return len(self._names)

    @property
    def n_bytes(self) -> int:
        """Return the size of all files, as far as this process knows."""
        return self._size

    def has(self, kind: str, digest: bytes) -> bool:
        """Return True if a file exists, as far as this process knows."""
        if (kind, digest) in self._names:
            return True
        # Another process may have written it since.
        if self._path(kind, digest).exists():
            self._names.add((kind, digest))
            return True
        return False

    def read(self, kind: str, digest: bytes) -> Bytes | None:
        """Return the payload of a file; None if it is missing or invalid."""
        path = self._path(kind, digest)
        try:
            return _parse(read_regular_file(path), self.identity, kind, digest)
        except OSError:
            self._forget(kind, digest)
            return None
        except ValueError:
            # A folder of that name is not a corrupt file: it stays, and would count again at every miss.
            self.n_damaged += not path.is_dir()
            with contextlib.suppress(OSError):
                path.unlink()
            self._forget(kind, digest)
            return None

    def write(self, kind: str, digest: bytes, data: Bytes, depth: int = 0) -> bool:
        """Write a file unless it exists; False, with the reason in `refusal`, if there is no room for it.

        `depth` is the number of pages before it: the ends of texts are evicted first.
        """
        # Check the file itself: another process may have removed it.
        if self.touch(kind, digest, depth):
            return True
        self._forget(kind, digest)
        payload = data.tobytes()
        n_bytes = _HEAD.size + _SUM + len(payload)
        if not self._make_room(n_bytes):
            return False
        path = self._path(kind, digest)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with atomic_write(path, mode=0o600) as file:
                file.write(_head(self.identity, kind, digest, payload))
                file.write(payload)
        except OSError as error:
            self.refusal = f"{path.parent}: {error.strerror}"
            return False
        with self._lock:
            self._names.add((kind, digest))
            self._size += n_bytes
            self._unseen += n_bytes
        self.touch(kind, digest, depth)
        return True

    def erase(self, kind: str, digest: bytes) -> None:
        """Remove a file, pinned or not."""
        path = self._path(kind, digest)
        for one in (path, path.with_name(path.name + _PIN)):
            with contextlib.suppress(OSError):
                one.unlink()
        self._forget(kind, digest)

    def touch(self, kind: str, digest: bytes, depth: int) -> bool:
        """Record a use; return True if the file exists.

        A page ranks one second below its parent: it is evicted first and never stays alone. A system prompt has a
        negative depth, which ranks above all others.
        """
        now = time.time()
        try:
            os.utime(self._path(kind, digest), (now, now - depth))
        except OSError:
            return False
        return True

    def look(self) -> None:
        """List the folder, which other processes write to and clear."""
        self._survey()

    def pin(self, kind: str, digest: bytes) -> None:
        """Pin a file: it is kept until it is cleared by name."""
        path = self._path(kind, digest)
        path.with_name(path.name + _PIN).touch(mode=0o600)

    def measured_rate(self, n_bytes: int = 8 << 20) -> float:
        """Return the measured read rate of this disk in bytes per second, without the page cache where possible."""
        path = self._own / f"speed.{os.getpid()}.tmp"
        try:
            with path.open("wb", buffering=0) as file:
                file.write(np.random.default_rng(0).bytes(n_bytes))
                os.fsync(file.fileno())
            with path.open("rb", buffering=0) as file:
                if sys.platform == "linux":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                start = time.perf_counter()
                n_read = 0
                while part := file.read(1 << 20):
                    n_read += len(part)
                return n_read / max(1e-9, time.perf_counter() - start)
        except OSError as error:
            self.refusal = f"{path}: {error.strerror}"
            return 0.0
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def _path(self, kind: str, digest: bytes) -> Path:
        name = digest.hex()
        return self._own / name[:2] / f"{name}.{kind}"

    def _forget(self, kind: str, digest: bytes) -> None:
        with self._lock:
            self._names.discard((kind, digest))

    def _survey(self) -> list[PageFile]:
        """List all files, and remove temporary files of killed writers."""
        files = list(stored_pages(self.root))
        with self._lock:
            self._size = sum(file.n_bytes for file in files)
            self._unseen, self._looked = 0, time.monotonic()
            self._names = {(f.kind, bytes.fromhex(f.digest)) for f in files if f.identity == self.identity}
        old = time.time() - 3600
        for path in (*self.root.glob("*/*/*.tmp"), *self.root.glob("*/*.tmp")):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < old:
                    path.unlink()
        return files

    def _make_room(self, n_bytes: int) -> bool:
        if n_bytes > self.max_bytes:
            self.refusal = f"a page takes {n_bytes} bytes, and the folder may take {self.max_bytes}"
            return False
        with self._trimming:
            now = time.monotonic()
            if self._unseen > _LOOKED * self.max_bytes or now - self._looked > _PATIENCE:
                self._survey()
            if self._size + n_bytes > self.max_bytes and now - self._refused > _PATIENCE:
                self._trim(int(_TRIMMED * self.max_bytes) - n_bytes)
            if self._size + n_bytes > self.max_bytes:
                if now - self._refused > _PATIENCE:
                    self._refused = now
                self.refusal = f"pinned files leave no room in {self.root}"
                return False
        if hasattr(os, "statvfs"):
            status = os.statvfs(self.root)
            free = status.f_bavail * status.f_frsize
            floor = min(_ENOUGH_FREE, int(_MIN_FREE_SHARE * status.f_blocks * status.f_frsize))
            if free - n_bytes < floor:
                self.refusal = f"{free} bytes are free on the disk of {self.root}, and {floor} stay free"
                return False
        return True

    def _trim(self, max_bytes: int) -> None:
        """Remove the least recently used files of all identities until they take at most `max_bytes`."""
        for file in sorted(self._survey(), key=lambda file: file.rank):
            if self._size <= max_bytes:
                return
            if file.is_pinned:
                continue
            try:
                file.path.unlink()
            except FileNotFoundError:
                pass  # another process removed it first
            except OSError:
                continue  # it stays and counts
            with self._lock:
                self._size -= file.n_bytes
                if file.identity == self.identity:
                    self._names.discard((file.kind, bytes.fromhex(file.digest)))


def stored_pages(folder: Path) -> Iterator[PageFile]:
    """Yield the files of all identities in a folder, except files that vanish meanwhile."""
    for path in folder.glob("*/*/*"):
        found = _NAME.fullmatch(path.name)
        if found is None:
            continue
        with contextlib.suppress(OSError):
            status = path.stat()
            is_pinned = path.with_name(path.name + _PIN).exists()
            identity = path.parent.parent.name
            yield PageFile(
                path, identity, found[1], found[2], status.st_size, status.st_atime, status.st_mtime, is_pinned
            )


def _sum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM).digest()


def _head(identity: str, kind: str, digest: bytes, payload: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, _VERSION, identity.encode(), kind.encode(), digest, len(payload), _sum(payload))
    return head + _sum(head)


def _parse(data: bytes, identity: str, kind: str, digest: bytes) -> Bytes:
    """Return the payload of a file. ValueError with the reason if its header does not match its name."""
    head, end = data[: _HEAD.size], _HEAD.size + _SUM
    if len(data) < end or _sum(head) != data[_HEAD.size : end]:
        raise ValueError("its header is torn or damaged")
    magic, version, its, its_kind, its_digest, n_bytes, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("it is of another version")
    named = (identity.encode(), kind.encode(), digest)
    if (its.rstrip(b"\0"), its_kind.rstrip(b"\0"), its_digest[: len(digest)]) != named:
        raise ValueError("it is of another text or another model than its name says")
    payload = memoryview(data)[end:]
    if len(payload) != n_bytes or _sum(payload) != checksum:
        raise ValueError("its content is torn or damaged")
    return np.frombuffer(payload, np.uint8)
