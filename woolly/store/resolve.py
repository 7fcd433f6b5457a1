"""From what a person typed to the model file that is meant."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from pathlib import Path

from woolly.errors import StoreError
from woolly.store import catalogue
from woolly.store.addresses import find_address, is_address
from woolly.store.catalogue import lookup
from woolly.store.checksum import is_intact
from woolly.store.folder import models_folder
from woolly.store.hub import HubName, find_here
from woolly.store.inventory import find_stored, list_models

__all__ = ["is_model_name", "near_models", "resolve"]


def resolve(spec: str | os.PathLike[str]) -> Path:
    """Return the path of a GGUF file: an existing file as it is, or a model that lies on this machine by its name."""
    text = os.fspath(spec)
    path = Path(text)
    try:
        if path.is_file():
            return path
        model = lookup(text)
        if model is not None:
            target = models_folder() / model.file_name
            if is_intact(target, model):
                return target
            state = "is damaged" if target.exists() else "is not here yet"
            raise StoreError(f"the model {model.name} {state}: run `woolly pull {model.name}`")
        if text.lower().startswith("hf:"):
            found = find_here(HubName.parse(text))
        elif is_address(text):
            found = find_address(text)
        else:
            stored = find_stored(text) if text else None
            found = None if stored is None else stored.path
        if found is not None:
            return found
        if is_address(text) or text.lower().startswith("hf:"):
            raise StoreError(f"{text} is not here yet: run `woolly pull {text}`")
        if text and path.is_dir():
            raise StoreError(_folder(text, path))
    except OSError as error:
        raise StoreError(
            f"{text} cannot be read ({error.strerror or error}): give the path of a GGUF file that can be"
        ) from error
    raise StoreError(f"there is no file and no model named {text!r}: {_advice(text, path)}")


def is_model_name(text: str) -> bool:
    """Whether this is plainly a model rather than a prompt; the file it names need not be here."""
    if lookup(text) is not None or is_address(text):
        return True
    if re.fullmatch(r"(hf|ollama|lmstudio):(\S+|\S.*\.gguf)", text, re.IGNORECASE):
        return True
    with contextlib.suppress(OSError, StoreError):
        return bool(text) and not re.search(r"\s", text) and find_stored(text) is not None
    return False


def _folder(text: str, path: Path) -> str:
    inside = sorted(entry.name for entry in path.glob("*.gguf"))
    if not inside:
        return f"{text} is a folder without GGUF files: give the path of a GGUF file"
    return f"{text} is a folder: give the path of a GGUF file in it, such as {path / inside[0]}"


def near_models(text: str, cutoff: float = 0.8) -> list[str]:
    """Known names that are nearly this one, or begin with it: the catalogue's and those on this machine."""
    wanted, known = text.lower(), _known()
    begun = [name for key, name in known.items() if len(wanted) >= 4 and key.startswith(wanted)]
    near = [known[key] for key in difflib.get_close_matches(wanted, known, n=3, cutoff=cutoff)]
    return list(dict.fromkeys([*near, *begun]))[:3]


def _known() -> dict[str, str]:
    """Names in small letters, and as they are."""
    names = {name: name for model in catalogue.CATALOGUE.values() for name in (model.name, *model.aliases)}
    with contextlib.suppress(OSError, StoreError):
        for model in list_models():
            for name in (model.name, *model.aliases):
                names.setdefault(name.lower(), model.name)
                names.setdefault(re.sub(r".*/|\.gguf$", "", name.lower()), model.name)
    return names


def _advice(text: str, path: Path) -> str:
    """Which names are near to this one, among the catalogue's, those on this machine and the files beside it."""
    names = _known()
    with contextlib.suppress(OSError):
        names |= {str(p).lower(): str(p) for p in list(path.parent.glob("*.gguf"))[:1000]}
    near = [names[key] for key in difflib.get_close_matches(text.lower(), names, n=3)]
    if near:
        return f"did you mean {' or '.join(dict.fromkeys(near))}?"
    known = ", ".join(sorted(catalogue.CATALOGUE))
    return f"give the path of a GGUF file, or a name such as {known}, hf:org/repo:Q4_K_M, or one of `woolly list`"
