"""Checks that a model file has the checksum of the catalogue."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from woolly.store.wheel_models import WheelModel

CHUNK = 1 << 20  # bytes per read


def is_intact(path: Path, model: WheelModel) -> bool:
    """True if the file exists and has the right SHA-256.

    After hashing, a note next to the file stores its size and time, so only a modified file is read again. Otherwise
    every start would hash about 100 MB.
    """
    try:
        if path.stat().st_size != model.n_bytes:
            return False
        if _noted(path) == _facts(path, model):
            return True
        if sha256_of(path) != model.sha256:
            return False
    except FileNotFoundError:
        return False
    mark_verified(path, model)
    return True


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def mark_verified(path: Path, model: WheelModel) -> None:
    """Write the note that this file has the right checksum."""
    # In a read-only folder, the file is hashed at every start.
    with contextlib.suppress(OSError):
        _note(path).write_text(_facts(path, model))


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified")


def _noted(path: Path) -> str | None:
    try:
        return _note(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _facts(path: Path, model: WheelModel) -> str:
    status = path.stat()
    return json.dumps({"sha256": model.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}) + "\n"
