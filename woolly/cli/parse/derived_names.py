"""Derived models of the commands `create`, `cp` and `show --modelfile`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from woolly.cli.parse.modelfile import write_modelfile
from woolly.errors import StoreError
from woolly.store import (
    Preset,
    expand_home,
    find_derived_model,
    find_preset,
    find_stored,
    is_in_catalogue,
    list_models,
    models_folder,
    publisher_sampling,
    resolve,
    write_derived,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,79}(:[A-Za-z0-9._-]{1,79})?")


def modelfile_of(name: str) -> str:
    """Return a model's settings as a Modelfile: those of a derived model, or of the preset with the model's name."""
    derived = find_derived_model(name)
    preset = derived or find_preset(resolve(name))
    if preset is None:
        return write_modelfile(name, None, publisher_sampling(resolve(name)))
    context = {} if preset.ctx is None else {"ctx": preset.ctx}
    return write_modelfile(preset.base or name, preset.system, {**context, **preset.sampling})


def create_derived(name: str, base: str, system: str | None, settings: Mapping[str, Any]) -> str:
    """Store a derived model and return its base. A derived base model is replaced with its own base and settings.

    Raises StoreError for an invalid name or setting, and if the base model is not on this machine.
    """
    from woolly.llm.presets import defaults_of, load_of
    from woolly.sampling import SamplingParams

    name = name.removesuffix(":latest")
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name[:80]!r} is not a name for a model; use letters, digits and . _ - / with a tag after :")
    if (taken := find_stored(name)) is not None:
        raise StoreError(f"{name!r} is the name of the model file {taken.path}; choose another name")
    if _is_in_catalogue(name):
        raise StoreError(f"{name!r} is a name of the catalogue, for `woolly pull {name}`; choose another name")
    folder = models_folder()
    derived = find_derived_model(base)
    if derived is not None and derived.base is not None:
        base = derived.base
        settings = {**({} if derived.ctx is None else {"ctx": derived.ctx}), **derived.sampling, **settings}
        system = derived.system if system is None else system
    base = _stored_base(base, resolve(base))
    rest = {key: value for key, value in settings.items() if key != "ctx"}
    preset = Preset(name, folder / "presets.toml", system, settings.get("ctx"), rest, base)
    load_of(preset)
    defaults_of(preset, SamplingParams())
    folder.mkdir(parents=True, exist_ok=True)
    write_derived(folder, name, base, system, settings)
    return base


def _is_in_catalogue(name: str) -> bool:
    """Return True for a catalogue name. Other tags of its families are free, as in Ollama."""
    with suppress(StoreError):
        return is_in_catalogue(name)
    return False


def _stored_base(base: str, path: Path) -> str:
    """Return the name or path of a base model that is valid in every folder and, if possible, at the server."""
    if not Path(expand_home(base)).is_file():
        return base
    own = (model for model in list_models() if model.owner == "woolly")
    return next((model.name for model in own if model.path.samefile(path)), str(path.resolve()))
