"""The folder in which pulled models are kept."""

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
    # The XDG specification says that a relative path is to be ignored; an empty value is relative too.
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            raise StoreError(
                "there is no home folder to keep models in: set WOOLLY_HOME to a folder that can be written"
            ) from None
    return cache / "woolly" / "models"
