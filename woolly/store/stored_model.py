"""Model files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class StoredModel:
    """Model file with its name and the program that owns it."""

    name: str  # argument of `woolly run`
    path: Path  # the file, or its first shard
    n_bytes: int  # size of all shards
    owner: str  # woolly, or the program that owns the folder
    modified: float  # seconds since 1970
    aliases: tuple[str, ...] = ()  # other names of the model
    link_to: Path | None = None  # target of `path`, if `path` is a link made by Woolly


def describe(name: str, path: Path, owner: str) -> StoredModel | None:
    """Return the entry for a file, or None if it cannot be read."""
    found = _SHARD.search(path.name)
    try:
        shards = (
            [path] if found is None else sorted(path.parent.glob(f"{path.name[: found.start()]}-*-of-{found[2]}.gguf"))
        )
        link_to = path.resolve() if owner == "woolly" and path.is_symlink() else None
        n_bytes = sum(shard.stat().st_size for shard in shards)
        return StoredModel(name, path, n_bytes, owner, path.stat().st_mtime, link_to=link_to)
    except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
        return None


def is_later_shard(path: Path) -> bool:
    """True if a file is a shard other than the first."""
    found = _SHARD.search(path.name)
    return found is not None and int(found[1]) != 1
