"""Digest of a model's files, cached until the files change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from woolly.store.checksum import sha256_of
from woolly.store.model_folder import models_folder
from woolly.store.safe_files import atomic_write


def digest_of(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of the files' SHA-256 digests, in hexadecimal.

    A note in `$WOOLLY_HOME/digests` avoids reading the files again. It is valid for an inode with the same size,
    modification time and change time. The kernel sets the change time, so a modified file is read again even if its
    modification time was set back.
    """
    return hashlib.sha256("".join(_digest(path) for path in paths).encode()).hexdigest()


def _digest(path: Path) -> str:
    place = os.path.realpath(path)
    note = models_folder().parent / "digests" / f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"
    facts = _facts(path)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known.get("facts") == facts and isinstance(known.get("sha256"), str):
            return str(known["sha256"])
    sha256 = sha256_of(path)
    if _facts(path) != facts:
        return sha256  # changed while hashing: do not cache
    # In a read-only folder, the file is hashed at every start.
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(note) as file:
            file.write(json.dumps({"path": place, "facts": facts, "sha256": sha256}).encode())
    return sha256


def _facts(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
