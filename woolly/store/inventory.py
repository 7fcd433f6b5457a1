"""Which models lie on this machine, and taking one of them away."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from woolly.errors import StoreError
from woolly.store import catalogue
from woolly.store.catalogue import lookup
from woolly.store.elsewhere import hub_models, lm_studio_models, ollama_models
from woolly.store.folder import models_folder
from woolly.store.hub import HubName, quant_of, shards_of
from woolly.store.stored import Stored, describe, is_later_shard

__all__ = ["find_stored", "list_models", "own_models", "remove_model"]

# What lies beside a model for its sake. The lock stays: to remove it would race with whoever waits for it.
_BESIDE = ("{}.verified", "{}.source.json", "{}.partial", "{}.partial.json")


def list_models() -> list[Stored]:
    """All models that are found: Woolly's own first, then other programs'. A file that several know is one model."""
    found = list(own_models())
    for others in (hub_models, ollama_models, lm_studio_models):
        with contextlib.suppress(OSError, RuntimeError):  # a store that may not be read, or no home
            found += others()
    by_file: dict[str, Stored] = {}
    for model in found:
        file = os.path.realpath(model.path)
        first = by_file.get(file)
        same = (model.name, *model.aliases)
        by_file[file] = model if first is None else replace(first, aliases=(*first.aliases, *same))
    return list(by_file.values())


def own_models() -> Iterator[Stored]:
    """What was pulled: catalogue names, `hf:` names, and file names of what came from elsewhere."""
    folder = models_folder()
    known = {model.file_name: model for model in catalogue.CATALOGUE.values()}
    for path in sorted(folder.rglob("*.gguf")) if folder.is_dir() else ():
        if is_later_shard(path):
            continue
        parts = path.relative_to(folder).parts
        model = known.get("/".join(parts))
        if model is not None:
            name = model.name
        elif parts[0] == "hf" and len(parts) > 3:
            name = f"hf:{parts[1]}/{parts[2]}/{'/'.join(parts[3:])}"
        else:
            name = "/".join(parts)
        if found := describe(name, path, "woolly"):
            # The server calls a model by its file, so that name finds it here too.
            yield found if model is None else replace(found, aliases=(*model.aliases, path.name))


def find_stored(name: str) -> Stored | None:
    """The model with this name as `list_models` gives it; `.gguf` may be left out, and `:latest` of Ollama's."""
    wanted = {name.lower(), f"{name.lower()}.gguf", f"{name.lower()}:latest"}
    return next((model for model in list_models() if wanted & _names(model)), None)


def _names(model: Stored) -> set[str]:
    return {name.lower() for name in (model.name, *model.aliases)}


def remove_model(name: str) -> Stored:
    """Take away a model of Woolly's own, with all its shards; gives what it was. Others' are left alone."""
    found = _own(name)
    if found is None:
        other = find_stored(name)
        if other is not None:
            raise StoreError(f"{other.name} belongs to {other.owner}: remove it there ({other.path})")
        if Path(name).is_file():
            raise StoreError(f"{name} is a file of yours, not a model that was pulled: remove it as any file")
        raise StoreError(f"no model named {name!r} was pulled: `woolly list` tells those that were")
    try:
        folder = found.path.parent
        shards = shards_of(found.path.name)
        for beside in (folder / pattern.format(shard) for shard in shards for pattern in _BESIDE):
            if beside.is_dir() and not beside.is_symlink():
                shutil.rmtree(beside)
            else:
                beside.unlink(missing_ok=True)
        for shard in reversed(shards):  # the first at last: what fails half-way can be removed again by its name
            (folder / shard).unlink(missing_ok=True)
        while folder != models_folder() and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
    except OSError as error:
        raise StoreError(f"{found.path} cannot be removed ({error.strerror or error})") from error
    return found


def _own(name: str) -> Stored | None:
    """The one model that a name means; StoreError where it may mean several."""
    model = lookup(name)
    wanted = {name.lower(), f"{name.lower()}.gguf"} | ({model.name} if model else set())
    models = list(own_models())
    meant = [own for own in models if own.name == name] or [own for own in models if wanted & _names(own)]
    if not meant and name.lower().startswith("hf:"):
        hub = HubName.parse(name)
        meant = [own for own in models if _is_meant(own, hub)]
    elif not meant:
        with contextlib.suppress(OSError, ValueError):  # the latter: a NUL in the name
            meant = [own for own in models if Path(name).exists() and own.path.samefile(name)][:1]
    if len(meant) > 1:
        raise StoreError(f"{name} may mean {' or '.join(own.name for own in meant)}: say which one to remove")
    return meant[0] if meant else None


def _is_meant(own: Stored, hub: HubName) -> bool:
    """Whether a repository, or a type in it, covers this model; a file is meant only by its exact name."""
    start = f"hf:{hub.repo.lower()}/"
    if hub.file is not None or not own.name.lower().startswith(start):
        return False
    quant = quant_of(own.name[len(start) :]) or ""
    return hub.quant is None or quant.removeprefix("UD-") == hub.quant.upper().removeprefix("UD-")
