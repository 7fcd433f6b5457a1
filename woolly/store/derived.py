"""Derived models: names for another model with a system prompt and sampling parameters.

    [pirate]                    # a preset with the model that it is derived from
    from = "smollm2"
    system = "Answer as a pirate."

They are tables in presets.toml of the models folder. Presets that the user wrote there are not changed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from woolly.errors import StoreError
from woolly.machine.file_lock import file_lock
from woolly.store.presets import PRESETS_FILE, Preset, read_presets

MAX_DERIVED = 256
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def list_derived(folder: Path) -> tuple[Preset, ...]:
    """Return the derived models of a models folder. Raise StoreError if the file is invalid."""
    file = folder / PRESETS_FILE
    return tuple(preset for preset in read_presets(file) if preset.base is not None) if file.is_file() else ()


def find_derived(folder: Path, name: str) -> Preset | None:
    """Return the derived model with this name (case-insensitive), or None."""
    return next((one for one in list_derived(folder) if one.name.lower() == name.lower()), None)


def write_derived(folder: Path, name: str, base: str, system: str | None, sampling: Mapping[str, Any]) -> None:
    """Create or replace the derived model `name`, based on the model `base`.

    Raises StoreError if the user wrote a preset with this name, or if there are too many derived models.
    """
    file = folder / PRESETS_FILE
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in sampling.items()}
    table = {"from": base, **({} if system is None else {"system": system}), **plain}
    with file_lock(file.with_suffix(".lock"), lambda: None):
        presets = read_presets(file) if file.is_file() else ()
        old = next((one for one in presets if one.name.lower() == name.lower()), None)
        if old is not None and old.base is None:
            raise StoreError(f"{name!r} is a preset of {PRESETS_FILE} that was written by hand; choose another name")
        if old is None and sum(one.base is not None for one in presets) >= MAX_DERIVED:
            raise StoreError(f"there are {MAX_DERIVED} derived models, which is the maximum; delete one")
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        content = _parsed(text)
        if old is not None:
            text = _without(text, old.name)
            content.pop(old.name)
        lines = [f"[{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
        text = (f"{text.rstrip()}\n\n" if text.strip() else "") + "\n".join(lines) + "\n"
        _replace(file, text, {**content, name: table})


def remove_derived(folder: Path, name: str) -> bool:
    """Remove a derived model. Return True if it existed."""
    file = folder / PRESETS_FILE
    if find_derived(folder, name) is None:
        return False
    with file_lock(file.with_suffix(".lock"), lambda: None):
        found = find_derived(folder, name)
        if found is None:
            return False
        text = file.read_text(encoding="utf-8")
        content = _parsed(text)
        content.pop(found.name)
        _replace(file, _without(text, found.name), content)
    return True


def _replace(file: Path, text: str, wanted: Mapping[str, Any]) -> None:
    """Write the complete file after checking the text. Raise StoreError if a table cannot be found in it."""
    try:
        is_wanted = _parsed(text) == wanted
    except StoreError:
        is_wanted = False
    if not is_wanted:
        raise StoreError(f"{PRESETS_FILE} cannot be edited automatically; edit it by hand")
    import tempfile  # only needed for derived names

    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as other:
        other.write(text)
        other.flush()
        os.fsync(other.fileno())
    Path(other.name).replace(file)


def _without(text: str, name: str) -> str:
    """Return the text without the table of a name: its header and all lines up to the next header."""
    kept: list[str] = []
    is_inside = False
    for line in text.splitlines():
        if line.startswith("["):
            is_inside = line.strip() in (f"[{name}]", f"[{_key(name)}]", f"[{json.dumps(name)}]")
        if not is_inside:
            kept.append(line)
    return "\n".join(kept) + "\n"


def _parsed(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{PRESETS_FILE} is not valid TOML: {error}; correct this line") from None


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """Return a value as TOML. JSON strings are valid TOML, except for the character DEL."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
