"""Detection of a native library that is older than its sources, for example after a `git pull` without a build."""

from __future__ import annotations

from pathlib import Path

import woolly
from woolly import _native


def advice_if_old(sources: Path | None = None, library: Path | None = None) -> str:
    """Return build advice for errors of native code, or an empty string if the library is up to date.

    Only a checkout has sources next to the package; a wheel has none.
    """
    sources = sources or Path(woolly.__file__).parent.parent / "native"
    try:
        built = (library or Path(_native.__file__)).stat().st_mtime
        is_old = any(file.stat().st_mtime > built for end in ("cpp", "h") for file in sources.rglob(f"*.{end}"))
    except OSError:
        return ""
    if not is_old:
        return ""
    return "; the native library is older than these sources: start Woolly by ./scripts/run, or run `pip install .`"
