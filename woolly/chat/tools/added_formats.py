"""Call formats added by a package or a file, with the fields of formats.json."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path

from woolly.chat.tools.format import Format, read_formats

GROUP = "woolly.tool_formats"  # entry points: a path of a file, a row, or a list of rows


@lru_cache(1)
def installed_formats() -> tuple[Format, ...]:
    """Return the call formats of installed packages."""
    found: list[Format] = []
    for entry in entry_points(group=GROUP):
        given = entry.load()
        found += read_formats(Path(given) if isinstance(given, (str, os.PathLike)) else given)
    return tuple(found)


def fitting_format(formats: Iterable[Format], template: str) -> Format | None:
    """Return the first format whose signature strings occur in a template's source."""
    return next((format for format in formats if all(sign in template for sign in format.signs)), None)
