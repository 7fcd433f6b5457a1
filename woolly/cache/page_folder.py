"""PageFolder: cache pages and recurrent states in files that several processes share.

The kind of a file is "page" (entries of full attention), "window0", "window1" (entries of each sliding window) or
"state" (recurrent state after the page).
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

# magic, version, identity, kind, digest, payload bytes, payload checksum; followed by a checksum of these fields
_HEAD = struct.Struct("<8sI48s8s32sQ20s")
_SUM = 20
_MAGIC, _VERSION = b"WOOLLYKV", 1
_NAME = re.compile(r"([0-9a-f]{40})\.(page|state|window\d{1,2})")
_PIN = ".pin"

# Eviction stops at this share of the limit, so that not every write has to evict files.
_TRIMMED = 0.9
_LOOKED = 1 / 16  # share of the limit that may be written before the folder is listed again
_PATIENCE = 60.0  # seconds until the folder is listed again, or eviction retried
_MIN_FREE_SHARE, _ENOUGH_FREE = 0.05, 2 << 30  # share of the disk to keep free, and maximum of this reserve in bytes


@dataclass(frozen=True)
class PageFile:
    """A file in a page folder."""

    path: Path
    identity: str
    digest: str  # hexadecimal
    kind: str
    n_bytes: int
    used: float  # time of the last use
    rank: float  # files with the lowest rank are evicted first
    is_pinned: bool

    def fault(self) -> str | None:
        """Return the fault of the file, or None if it is valid."""
        try:
            _parse(read_regular_file(self.path), self.identity, self.kind, bytes.fromhex(self.digest))
        except OSError as error:
            return error.strerror or "unreadable"
        except ValueError as error:
            return str(error)
        return None

    def unpin(self) -> None:
        """Remove the pin."""
        self.path.with_name(self.path.name + _PIN).unlink(missing_ok=True)


class PageFolder:
    """Files of one identity, in a folder that several identities and processes share.

    Files are immutable, named by the digest of all tokens up to the end of the page, and created atomically: written
    under a temporary name, synced and renamed. The directory listing serves as the index. A truncated or corrupt file
    is removed and counts as a miss, like a file removed by another process. Thread-safe.
    """

    def __init__(self, folder: Path, identity: str, max_bytes: int) -> None:
        """`max_bytes` limits the files of all identities in the folder."""
        self.root = folder
        self.identity = identity
        self.max_bytes = max_bytes
        self._own = folder / identity
        self._lock = threading.Lock()
        self._names: set[tuple[str, bytes]] = set()
        self._size = 0  # size of all files known to this process
        self._unseen = 0  # bytes written since the last listing
        self._looked = self._refused = -_PATIENCE
        self._trimming = threading.Lock()
        self.n_damaged = 0
        self.refusal: str | None = None  # reason for skipping the last write
        for path in (folder, self._own):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._survey()

    def __len__(self) -> int:
        return len(self._names)

    @property
    def n_bytes(self) -> int:
        """Size of all files known to this process."""
        return self._size

    def has(self, kind: str, digest: bytes) -> bool:
        """Return True if a file exists."""
        if (kind, digest) in self._names:
            return True
        # Another process may have written the file.
        if self._path(kind, digest).exists():
            self._names.add((kind, digest))
            return True
        return False

    def read(self, kind: str, digest: bytes) -> Bytes | None:
        """Return the payload of a file, or None if it is missing or invalid."""
        path = self._path(kind, digest)
        try:
            return _parse(read_regular_file(path), self.identity, kind, digest)
        except OSError:
            self._forget(kind, digest)
            return None
        except ValueError:
            # A folder with this name is not a corrupt file. It is never removed, so it is not counted at each miss.
            self.n_damaged += not path.is_dir()
            with contextlib.suppress(OSError):
                path.unlink()
            self._forget(kind, digest)
            return None

    def write(self, kind: str, digest: bytes, data: Bytes, depth: int = 0) -> bool:
        """Write a file unless it exists. If there is no room, return False and set `refusal`.

        `depth` is the number of preceding pages: the last pages of a prompt are evicted first.
        """
        # Check the file itself, because another process may have removed it.
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
        """Remove a file, even if it is pinned."""
        path = self._path(kind, digest)
        for one in (path, path.with_name(path.name + _PIN)):
            with contextlib.suppress(OSError):
                one.unlink()
        self._forget(kind, digest)

    def touch(self, kind: str, digest: bytes, depth: int) -> bool:
        """Record a use; return True if the file exists.

        A page ranks one second below its parent, so it is evicted before its parent and never remains without it. Pages
        of a system prompt have a negative depth and rank above all others.
        """
        now = time.time()
        try:
            os.utime(self._path(kind, digest), (now, now - depth))
        except OSError:
            return False
        return True

    def look(self) -> None:
        """List the folder again, to find changes by other processes."""
        self._survey()

    def pin(self, kind: str, digest: bytes) -> None:
        """Pin a file, which protects it from eviction."""
        path = self._path(kind, digest)
        path.with_name(path.name + _PIN).touch(mode=0o600)

    def measured_rate(self, n_bytes: int = 8 << 20) -> float:
        """Return the measured read rate of the disk in bytes per second, bypassing the page cache where possible."""
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
        """List all files, and remove temporary files of killed processes."""
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
            self.refusal = f"a page takes {n_bytes} bytes, but the limit of the folder is {self.max_bytes}"
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
                self.refusal = f"the disk of {self.root} has {free} bytes free, but {floor} must stay free"
                return False
        return True

    def _trim(self, max_bytes: int) -> None:
        """Remove the least recently used files of all identities until at most `max_bytes` remain."""
        for file in sorted(self._survey(), key=lambda file: file.rank):
            if self._size <= max_bytes:
                return
            if file.is_pinned:
                continue
            try:
                file.path.unlink()
            except FileNotFoundError:
                pass  # another process removed the file first
            except OSError:
                continue  # the file remains and counts
            with self._lock:
                self._size -= file.n_bytes
                if file.identity == self.identity:
                    self._names.discard((file.kind, bytes.fromhex(file.digest)))


def stored_pages(folder: Path) -> Iterator[PageFile]:
    """Yield the files of all identities in a folder."""
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
    """Return the payload of a file.

    Raise ValueError with the reason if the file is invalid or does not match its name.
    """
    head, end = data[: _HEAD.size], _HEAD.size + _SUM
    if len(data) < end or _sum(head) != data[_HEAD.size : end]:
        raise ValueError("truncated or damaged header")
    magic, version, its, its_kind, its_digest, n_bytes, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("unsupported version")
    named = (identity.encode(), kind.encode(), digest)
    if (its.rstrip(b"\0"), its_kind.rstrip(b"\0"), its_digest[: len(digest)]) != named:
        raise ValueError("header does not match the file name")
    payload = memoryview(data)[end:]
    if len(payload) != n_bytes or _sum(payload) != checksum:
        raise ValueError("truncated or damaged content")
    return np.frombuffer(payload, np.uint8)
