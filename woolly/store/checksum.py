"""Whether a model file is the one that the catalogue promises."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from woolly.store.catalogue import Model

__all__ = ["CHUNK", "hash_of", "is_intact", "remember"]

CHUNK = 1 << 20  # bytes read at a time


def is_intact(path: Path, model: Model) -> bool:
    """Whether the file is there with the right SHA-256.

    A small note beside the file remembers its size and time once hashed, so that only a file that was touched
    is read again: about 100 MB would otherwise be hashed at every start.
    """
    try:
        if path.stat().st_size != model.n_bytes:
            return False
        if _noted(path) == _facts(path, model):
            return True
        if hash_of(path) != model.sha256:
            return False
    except FileNotFoundError:
        return False
    remember(path, model)
    return True


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remember(path: Path, model: Model) -> None:
    """Note that the file as it lies there has been hashed and found right."""
    # A folder that can only be read costs a hash per start, nothing else.
    with contextlib.suppress(OSError):
        _note(path).write_text(_facts(path, model))


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified")


def _noted(path: Path) -> str | None:
    try:
        return _note(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _facts(path: Path, model: Model) -> str:
    status = path.stat()
    return json.dumps({"sha256": model.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}) + "\n"
