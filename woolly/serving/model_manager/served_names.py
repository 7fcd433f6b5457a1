"""Additional names of models, with separate settings for each name.

[models.think]              # in woolly.toml; in presets.toml of the models folder the table is [think]
from = "qwen3:4b"           # names with the same loading settings share one loaded model
reasoning = "on"
[models.long]
from = "qwen3:4b"           # may be another name, whose settings are inherited
ctx = 65536                 # a loading setting: this name has a separate loaded model
kv_type = "q8_0"
pin = true                  # never unloaded for another model
keep_alive = 3600           # seconds that the model stays loaded after its last use
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.errors import StoreError
from woolly.llm.presets import defaults_of, load_of
from woolly.sampling import SamplingParams
from woolly.serving.model_manager.keep_alive import KeepAlive
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.observability.logs import log
from woolly.store import Preset, find_preset, list_derived, read_presets

TABLE = "models"
_REASONING = ("auto", "on", "off")


class ServedNames:
    """Names from presets.toml of the models folder and from --names-file; changed files are reloaded.

    Thread-safe.
    """

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        self._folder = folder
        self._file = file
        self._added: dict[str, Preset] = {}  # names added at run time; replaced atomically for readers on threads

    def add(self, preset: Preset) -> None:
        """Add a name that is in no file."""
        self._added = {**self._added, preset.name: preset}

    def remove(self, name: str) -> None:
        """Remove an added name."""
        self._added = {known: preset for known, preset in self._added.items() if known != name}

    def check(self) -> None:
        """Raise StoreError if --names-file is invalid; presets.toml is checked when its names are used."""
        if self._file is not None:
            for preset in read_presets(self._file, TABLE):
                _check(preset)

    def all(self) -> tuple[Preset, ...]:
        """Return all names with their base models and inherited settings. Raises StoreError if a file is invalid."""
        own = () if self._file is None else read_presets(self._file, TABLE)
        known: dict[str, Preset] = {}
        for preset in (*own, *list_derived(self._folder), *self._added.values()):
            known.setdefault(preset.name.lower(), preset)
        return tuple(_resolve_base(preset, known) for preset in known.values())

    def find(self, name: str) -> Preset | None:
        """Return the preset of a name, or None for other names."""
        wanted = name.removesuffix(":latest").lower()
        with suppress(StoreError):  # an invalid presets file is reported when a model is used
            return next((one for one in self.all() if one.name.lower() == wanted), None)
        return None

    def backing_model(self, preset: Preset, base: ModelInfo) -> ModelInfo:
        """Return the loaded model for a name: the base model, or a copy with the name's loading settings.

        The first name with these settings is the name of the loaded model. Raises StoreError for an invalid setting.
        """
        _check(preset)
        load = load_of(preset)
        if not load:
            return base
        first = next((one for one in self.all() if base.has_name(one.base or "") and _loads(one, load)), preset)
        return replace(base, name=first.name, aliases=(), given_names=(), base=base.name, loading=first)

    def as_models(self, models: Sequence[ModelInfo]) -> Iterator[tuple[ModelInfo, str]]:
        """Yield the names as models, each with the name of its loaded model."""
        with suppress(StoreError):
            for preset in self.all():
                base = next((one for one in models if preset.base and one.has_name(preset.base)), None)
                if base is not None:
                    with suppress(StoreError):
                        found = self.backing_model(preset, base)
                        ctx = preset.ctx or base.context_length
                        own = replace(base, name=preset.name, aliases=(), given_names=(), base=base.name)
                        yield replace(own, context_length=ctx), found.name

    def keep_alive_of(self, info: ModelInfo) -> KeepAlive:
        """Return the keep-alive of a loaded model, which is the longest keep-alive among its names.

        Names with invalid settings are logged and skipped.
        """
        said = [] if info.base is not None else [find_preset(info.path)]
        for preset in self.all():
            base = info if info.base is None else replace(info, name=info.base)
            if preset.base and base.has_name(preset.base) and _loads(preset, load_of(info.loading)):
                said.append(preset)
        tables: list[Mapping[str, Any]] = []
        for one in said:
            if one is not None:
                try:
                    _check_keep_alive(one)
                    tables.append(one.sampling)
                except StoreError as error:
                    log.warning("name left out", extra={"model": info.name, "reason": str(error)})
        kept = [_seconds(table["keep_alive"]) for table in tables if "keep_alive" in table]
        return KeepAlive(any(table.get("pin") is True for table in tables), max(kept, default=None))


def reasoning_of(preset: Preset | None) -> str:
    """Return the reasoning setting of a name: on, off, or auto (the template's default)."""
    return "auto" if preset is None else str(preset.sampling.get("reasoning", "auto"))


def _seconds(value: float) -> float:
    return math.inf if value < 0 else float(value)


def _loads(preset: Preset, load: Mapping[str, Any]) -> bool:
    """Return True if a name has these loading settings. Invalid names are reported when they are used."""
    with suppress(StoreError):
        return load_of(preset) == load
    return False


def _resolve_base(preset: Preset, known: Mapping[str, Preset]) -> Preset:
    """Return a name with its base model and the settings inherited from other names."""
    seen = {preset.name.lower()}
    while preset.base is not None:
        wanted = preset.base.removesuffix(":latest").lower()
        if wanted not in known or wanted in seen:  # a name may equal the name of its base model
            break
        seen.add(wanted)
        other = known[wanted]
        sampling = {**other.sampling, **preset.sampling}
        if "lora" in other.sampling and "lora" not in preset.sampling:
            with suppress(StoreError):  # invalid adapters are reported when the name is used
                sampling["lora"] = list(load_of(other)["adapters"])  # relative to the folder of that name's file
        system, ctx = preset.system if preset.system is not None else other.system, preset.ctx or other.ctx
        preset = replace(preset, base=other.base, system=system, ctx=ctx, sampling=sampling)
    return preset


def _check(preset: Preset) -> None:
    where = f"{preset.file}: [{preset.name}]"
    if preset.base is None:
        raise StoreError(f'{where} names no model; add a line such as from = "smollm2"')
    load_of(preset)
    _check_keep_alive(preset)
    table = preset.sampling
    if table.get("reasoning", "auto") not in _REASONING:
        raise StoreError(f"{where}: reasoning is {table['reasoning']!r}; choose one of: {', '.join(_REASONING)}")
    defaults_of(preset, SamplingParams())


def _check_keep_alive(preset: Preset) -> None:
    where, table = f"{preset.file}: [{preset.name}]", preset.sampling
    if not isinstance(table.get("pin", False), bool):
        raise StoreError(f"{where}: pin is {table['pin']!r}; expected true or false")
    kept = table.get("keep_alive", 0)
    if isinstance(kept, bool) or not isinstance(kept, (int, float)):
        raise StoreError(f"{where}: keep_alive is {kept!r}; expected seconds, or -1 for no limit")
