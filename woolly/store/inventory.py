"""List of models on this machine, and removal of models."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from woolly.errors import StoreError
from woolly.store import wheel_models
from woolly.store.file_formats import find_files, is_companion
from woolly.store.hub import HubName, quant_of, shards_of
from woolly.store.model_folder import models_folder
from woolly.store.names import is_path, names_in_catalogue, remote_name
from woolly.store.other_programs import hub_models, lm_studio_models, ollama_models
from woolly.store.stored_model import StoredModel, describe, is_later_shard
from woolly.store.wheel_models import find_wheel_model

# Side files that are removed with a model, except the lock, on which another process may wait.
_SIDE_FILES = ("{}.verified", "{}.source.json", "{}.partial", "{}.partial.json")


def list_models() -> list[StoredModel]:
    """Return all models, Woolly's models first. A file that several programs list counts as one model."""
    found = list(pulled_models())
    for others in (hub_models, ollama_models, lm_studio_models):
        with contextlib.suppress(OSError, RuntimeError):  # unreadable store, or no home folder
            found += others()
    by_file: dict[str, StoredModel] = {}
    for model in found:
        file = os.path.realpath(model.path)
        first = by_file.get(file)
        same = (model.name, *model.aliases)
        by_file[file] = model if first is None else replace(first, aliases=(*first.aliases, *same))
    return list(by_file.values())


def pulled_models() -> Iterator[StoredModel]:
    """Yield the pulled models with the names from `pulled_names`."""
    folder = models_folder()
    for path in sorted(find_files(folder)):
        if not is_later_shard(path) and not is_companion(path.name):
            name, *aliases = pulled_names(folder, path)
            if found := describe(name, path, "woolly"):
                yield replace(found, aliases=tuple(aliases))


def pulled_names(folder: Path, path: Path) -> list[str]:
    """Return the names of a file in a models folder, the displayed name first. Also used by the server.

    The displayed name is the catalogue name, `hf:org/repo/file.gguf` for other hub files, or the file name
    without suffix. The file name with and without suffix is always included.
    """
    parts = path.relative_to(folder).parts
    place = "/".join(parts)
    stem = re.sub(r"(-00001-of-\d{5})?\.gguf$|\.bin$", "", place)
    if parts[0] == "hf" and len(parts) > 3:
        repo, file = "/".join(parts[1:3]), "/".join(parts[3:])
        names = [*names_in_catalogue(repo, file), f"hf:{repo}/{file}"]
        stem = stem.rpartition("/")[2]
    else:
        known = (model for model in wheel_models.WHEEL_MODELS.values() if model.file_name == place)
        names = [name for model in known for name in (model.name, *model.aliases)]
    return list(dict.fromkeys([*names, stem, place if parts[0] != "hf" else path.name]))


def find_stored(name: str) -> StoredModel | None:
    """Return the model with this name, or None. `.gguf` and Ollama's `:latest` are optional."""
    wanted = {name.lower(), f"{name.lower()}.gguf", f"{name.lower()}:latest"}
    return next((model for model in list_models() if wanted & _names(model)), None)


def _names(model: StoredModel) -> set[str]:
    return {name.lower() for name in (model.name, *model.aliases)}


def remove_model(name: str) -> StoredModel:
    """Remove a model that Woolly pulled, with all shards, and return its entry. Other programs' models are rejected."""
    found = _own(name)
    if found is None:
        other = find_stored(name)
        if other is not None:
            raise StoreError(f"{other.name} belongs to {other.owner}: remove it there ({other.path})")
        if Path(name).is_file():
            raise StoreError(f"{name} is your own file, not a pulled model; delete it with your file manager or shell")
        raise StoreError(f"no model named {name!r} was pulled; `woolly list` shows the pulled models")
    try:
        folder = found.path.parent
        shards = shards_of(found.path.name)
        for beside in (folder / pattern.format(shard) for shard in shards for pattern in _SIDE_FILES):
            if beside.is_dir() and not beside.is_symlink():
                shutil.rmtree(beside)
            else:
                beside.unlink(missing_ok=True)
        for beside in _projectors_left(found.path):
            beside.unlink(missing_ok=True)
        for shard in reversed(shards):  # first shard last: if removing fails, the name still finds the rest
            (folder / shard).unlink(missing_ok=True)
        while folder != models_folder() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
    except OSError as error:
        raise StoreError(f"{found.path} cannot be removed ({error.strerror or error})") from error
    return found


def _projectors_left(path: Path) -> list[Path]:
    """Return the projectors that are no longer needed after the last model of their repository is removed."""
    folder = path.parent
    others = [one for one in pulled_models() if one.path.parent == folder and one.path != path]
    if others or not folder.is_relative_to(models_folder() / "hf"):
        return []
    return [one for one in folder.glob("*.gguf") if is_companion(one.name)]


def _own(name: str) -> StoredModel | None:
    """Return the model with this name, or None. Raise StoreError if the name is ambiguous."""
    model = find_wheel_model(name)
    wanted = {name.lower(), f"{name.lower()}.gguf"} | ({model.name} if model else set())
    models = list(pulled_models())
    meant = [own for own in models if name in (own.name, *own.aliases)] or [
        own for own in models if wanted & _names(own)
    ]
    remote = None if meant or is_path(name) else remote_name(name)
    if isinstance(remote, HubName):
        meant = [own for own in models if _is_meant(own, remote)]
    elif not meant:
        with contextlib.suppress(OSError, ValueError):  # ValueError: NUL in the name
            meant = [own for own in models if Path(name).exists() and own.path.samefile(name)][:1]
    if len(meant) > 1:
        raise StoreError(f"{name} may mean {' or '.join(own.name for own in meant)}; choose the one to remove")
    return meant[0] if meant else None


def _is_meant(own: StoredModel, hub: HubName) -> bool:
    """True if a repository, or a type in it, includes this model. A file must match exactly."""
    start = f"hf:{hub.repo.lower()}/"
    name = next((name for name in (own.name, *own.aliases) if name.lower().startswith(start)), None)
    if hub.file is not None or name is None:
        return name is not None and name[len(start) :] == hub.file
    quant = quant_of(name[len(start) :]) or ""
    return hub.quant is None or quant.removeprefix("UD-") == hub.quant.upper().removeprefix("UD-")
