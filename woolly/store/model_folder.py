"""Folder of pulled models."""

from __future__ import annotations

import os
from pathlib import Path

from woolly.errors import StoreError


def models_folder() -> Path:
    """Return `$WOOLLY_HOME/models`, else `$XDG_CACHE_HOME/woolly/models`, else `~/.cache/woolly/models`.

    The path is absolute; the folder need not exist.
    """
    if home := os.environ.get("WOOLLY_HOME"):
        return Path(home).expanduser().absolute() / "models"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a relative path; an empty value is also relative.
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            raise StoreError("there is no home folder for models; set WOOLLY_HOME to a writable folder") from None
    return cache / "woolly" / "models"
