"""A model on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class StoredModel:
    """A model file, the name that finds it, and the program that owns it."""

    name: str  # what `woolly run` takes
    path: Path  # the file, or the first of its shards
    n_bytes: int  # of all shards
    owner: str  # woolly, or the program whose folder it is in
    modified: float  # seconds since 1970
    aliases: tuple[str, ...] = ()  # further names that find it
    link_to: Path | None = None  # the file, if `path` is a link that Woolly keeps


def describe(name: str, path: Path, owner: str) -> StoredModel | None:
    """Returns the entry for a file, or None if it cannot be read."""
    found = _SHARD.search(path.name)
    try:
        shards = (
            [path] if found is None else sorted(path.parent.glob(f"{path.name[: found.start()]}-*-of-{found[2]}.gguf"))
        )
        link_to = path.resolve() if owner == "woolly" and path.is_symlink() else None
        n_bytes = sum(shard.stat().st_size for shard in shards)
        return StoredModel(name, path, n_bytes, owner, path.stat().st_mtime, link_to=link_to)
    except OSError:
        return None


def is_later_shard(path: Path) -> bool:
    """Returns whether a file is a shard, but not the first."""
    found = _SHARD.search(path.name)
    return found is not None and int(found[1]) != 1
