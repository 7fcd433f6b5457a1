"""Presets: default settings of a model, read from presets.toml.

    [smollm2]                   # a model's name: applies whenever the model is opened
    system = "Answer in one sentence."
    ctx = 4096
    temperature = 0.2

    [pirate]                    # any other name: applies on request
    system = "Answer as a pirate."

The file is next to the model, in the models folder, or in WOOLLY_HOME. The first file with the preset is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from woolly.errors import StoreError
from woolly.store.inventory import pulled_names
from woolly.store.model_folder import models_folder

PRESETS_FILE = "presets.toml"
NO_PRESET = "none"  # selects no preset, not even the one with the model's name


@dataclass(frozen=True)
class Preset:
    """A table of the file."""

    name: str
    file: Path
    system: str | None = None  # default system prompt
    ctx: int | None = None  # context: tokens of prompt and answer
    sampling: Mapping[str, Any] = field(default_factory=dict)  # all other keys; checked by the sampler
    base: str | None = None  # base model of a derived model: `from`, see derived.py


def find_preset(model: Path, name: str | None = None) -> Preset | None:
    """Return the preset with this name. Without a name, return the preset of the model's name, or None.

    StoreError if a requested preset does not exist, or if a file is invalid.
    """
    if name == NO_PRESET:
        return None
    wanted = pulled_names(model.parent, model) if name is None else [name]
    known: list[str] = []
    for file in preset_files(model):
        presets = read_presets(file)
        by_name = {preset.name.lower(): preset for preset in presets}
        found = next((by_name[one.lower()] for one in wanted if one.lower() in by_name), None)
        if found is not None:
            return found
        known += by_name
    if name is not None:
        listed = (
            f"known: {', '.join(known)}"
            if known
            else f"write it as a table [{name}] of {models_folder().parent / PRESETS_FILE}"
        )
        raise StoreError(f"there is no preset named {name!r}; {listed}")
    return None


def preset_files(model: Path) -> Iterator[Path]:
    """Yield existing preset files: next to the model, in the models folder, in its parent folder."""
    folders = (model.parent, models_folder(), models_folder().parent)
    yield from (file for folder in dict.fromkeys(folders) if (file := folder / PRESETS_FILE).is_file())


def read_presets(file: Path, table: str | None = None) -> tuple[Preset, ...]:
    """Return the presets of a file, or of one table in it. Raise StoreError if it is unreadable or invalid."""
    try:
        status = file.stat()
        return _parse(file, table, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _parse(file: Path, table: str | None, _time: int, _size: int) -> tuple[Preset, ...]:
    """Return the presets of a file. Modification time and size are part of the cache key."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise StoreError(f"{file} is not UTF-8; save it as UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{file} is not valid TOML: {error}; correct this line") from None
    if table is not None:
        content = content.get(table, {})
        if not isinstance(content, dict):
            raise StoreError(f"{file}: {table} is not a table; expected a table such as [{table}.fast]")
    return tuple(_preset(file, name, one) for name, one in content.items())


def _preset(file: Path, name: str, table: Any) -> Preset:
    if not isinstance(table, dict):
        raise StoreError(f"{file}: {name} is outside of a table; put it below a name such as [smollm2]")
    sampling = dict(table)
    system, ctx, base = (sampling.pop(key, None) for key in ("system", "ctx", "from"))
    if base is not None and not isinstance(base, str):
        raise StoreError(f"{file}: from of [{name}] is {base!r}; expected the name of a model")
    if system is not None and not isinstance(system, str):
        raise StoreError(f"{file}: system of [{name}] is {system!r}; expected a string")
    if ctx is not None and (isinstance(ctx, bool) or not isinstance(ctx, int) or ctx < 1):
        raise StoreError(f"{file}: ctx of [{name}] is {ctx!r}; expected a number of tokens")
    return Preset(name, file, system, ctx, MappingProxyType(sampling), base)
