"""Presets: what a person wants of a model each time, read from presets.toml.

    [smollm2]                   # a model's name: applies whenever it is opened
    system = "Answer in one sentence."
    ctx = 4096
    temperature = 0.2

    [pirate]                    # any other name: applies if it is asked for
    system = "Answer as a pirate."

The file is beside the model, in the models folder, or in WOOLLY_HOME; the first that has the preset counts.
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
from woolly.store.inventory import own_names
from woolly.store.model_folder import models_folder

PRESETS_FILE = "presets.toml"
NO_PRESET = "none"  # asks for no preset, not even that of the model's name


@dataclass(frozen=True)
class Preset:
    """One table of the file."""

    name: str
    file: Path
    system: str | None = None  # the system prompt of a conversation that has none
    ctx: int | None = None  # tokens of prompt and answer together
    sampling: Mapping[str, Any] = field(default_factory=dict)  # every other key; the sampler checks them
    base: str | None = None  # the model that the name stands for in requests: `from`, see derived.py


def find_preset(model: Path, name: str | None = None) -> Preset | None:
    """Returns the preset of this name; without one, that of the model's name, or None if there is none.

    StoreError if the named one does not exist, or a file is not as it should be.
    """
    if name == NO_PRESET:
        return None
    wanted = own_names(model.parent, model) if name is None else [name]
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
    """Yields the files that exist: beside the model, in the models folder, in the folder above it."""
    folders = (model.parent, models_folder(), models_folder().parent)
    yield from (file for folder in dict.fromkeys(folders) if (file := folder / PRESETS_FILE).is_file())


def read_presets(file: Path, table: str | None = None) -> tuple[Preset, ...]:
    """Returns the presets of a file, or of a table in it. StoreError if it cannot be read or is not as it should be."""
    try:
        status = file.stat()
        return _parse(file, table, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _parse(file: Path, table: str | None, _time: int, _size: int) -> tuple[Preset, ...]:
    """Returns the presets of a file; the numbers tell its versions apart."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise StoreError(f"{file} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{file} is not valid TOML: {error}") from None
    if table is not None:
        content = content.get(table, {})
        if not isinstance(content, dict):
            raise StoreError(f"{file}: {table} is not a table; write one such as [{table}.fast]")
    return tuple(_preset(file, name, one) for name, one in content.items())


def _preset(file: Path, name: str, table: Any) -> Preset:
    if not isinstance(table, dict):
        raise StoreError(f"{file}: {name} stands outside of a table; write it below a name such as [smollm2]")
    sampling = dict(table)
    system, ctx, base = (sampling.pop(key, None) for key in ("system", "ctx", "from"))
    if base is not None and not isinstance(base, str):
        raise StoreError(f"{file}: from of [{name}] is {base!r}; the name of a model was expected")
    if system is not None and not isinstance(system, str):
        raise StoreError(f"{file}: system of [{name}] is {system!r}; a text was expected")
    if ctx is not None and (isinstance(ctx, bool) or not isinstance(ctx, int) or ctx < 1):
        raise StoreError(f"{file}: ctx of [{name}] is {ctx!r}; a number of tokens was expected")
    return Preset(name, file, system, ctx, MappingProxyType(sampling), base)
