"""Finds the model file that a typed name means."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from woolly.errors import StoreError
from woolly.store import wheel_models
from woolly.store.checksum import is_intact
from woolly.store.derived import find_derived
from woolly.store.file_formats import is_whisper_file
from woolly.store.hub import HubName, find_local
from woolly.store.inventory import find_stored, list_models
from woolly.store.model_folder import models_folder
from woolly.store.names import (
    catalogue_names,
    expand_home,
    find_in_catalogue,
    is_bare_repo,
    is_in_catalogue,
    is_path,
    is_url,
    names_in_catalogue,
    remote_name,
)
from woolly.store.presets import Preset
from woolly.store.urls import find_downloaded
from woolly.store.wheel_models import find_wheel_model


def resolve(spec: str | os.PathLike[str]) -> Path:
    """Returns the path of a GGUF file: an existing file as it is, or a model on this machine by its name."""
    text = expand_home(os.fspath(spec))
    path = Path(text)
    try:
        if path.is_file():
            return path
        model = find_wheel_model(text)
        if model is not None:
            target = models_folder() / model.file_name
            if is_intact(target, model):
                return target
            state = "is damaged" if target.exists() else "is not here yet"
            raise StoreError(f"the model {model.name} {state}: run `woolly pull {model.name}`")
        stored = find_stored(text) if text and not is_url(text) else None
        if stored is not None:
            return stored.path
        if (made := find_derived_model(text)) is not None and made.base is not None:
            return resolve(made.base)
        remote = None if is_path(text) else remote_name(text)
        found = find_downloaded(remote) if isinstance(remote, str) else _find_hub(text, remote) if remote else None
        if found is not None:
            return found
        if remote is not None:
            raise StoreError(_not_here(text, remote))
        if text and path.is_dir():
            raise StoreError(_folder(text, path))
    except OSError as error:
        raise StoreError(
            f"{text} cannot be read ({error.strerror or error}): give the path of a GGUF file that can be"
        ) from error
    raise StoreError(f"there is no file and no model named {text!r}: {_advice(text, path)}")


def find_derived_model(text: str) -> Preset | None:
    """Returns what a name stands for that `create` of Ollama's API has made in the models folder; None for others.

    A file and a model of the name go before it. StoreError if the file of presets is not as it should be.
    """
    name = text.removesuffix(":latest")
    if (
        not name
        or is_url(text)
        or Path(text).is_file()
        or find_wheel_model(text) is not None
        or find_stored(text) is not None
    ):
        return None
    made = find_derived(models_folder(), name)
    is_loop = made is not None and made.base is not None and find_derived(models_folder(), made.base) is not None
    return None if is_loop else made


def _find_hub(text: str, wanted: HubName) -> Path | None:
    """Returns the file of a model of the hub; a copy that Ollama has serves for a name of the catalogue."""
    found = find_local(wanted)
    if found is None and find_in_catalogue(text) is not None:
        stored = find_stored(f"ollama:{text}")
        return None if stored is None else stored.path
    return found


def _not_here(text: str, remote: HubName | str) -> str:
    named = find_in_catalogue(text)
    if named is not None:
        size = f"{named.size.gigabytes}, " if named.size else ""
        return f"the model {text} is not here yet: run `woolly pull {text}` ({size}{named.hub})"
    if not is_bare_repo(text):
        return f"{text} is not here yet: run `woolly pull {text}`"
    if near := similar_models(text):
        return f"there is no file {text}, and {remote} is not here: did you mean {' or '.join(near)}?"
    return f"there is no file {text}, and {remote} is not here yet: run `woolly pull {remote}`"


def is_model_name(text: str) -> bool:
    """Returns whether this is plainly a model rather than a prompt; its file need not be here."""
    if re.fullmatch(r"(hf|ollama|lmstudio):(\S+|\S.*\.gguf)", text, re.IGNORECASE):
        return True
    if not text or re.search(r"\s", text):
        return False
    with contextlib.suppress(OSError, StoreError):
        if is_in_catalogue(text) or find_stored(text) is not None or find_derived_model(text) is not None:
            return True
        remote = remote_name(text)
        # A prompt may have a slash too, as "and/or" has.
        plain = not is_bare_repo(text) or re.search(r"-gguf(:|$)|:", text, re.IGNORECASE) is not None
        return remote is not None and (plain or (isinstance(remote, HubName) and find_local(remote) is not None))
    return False


def _folder(text: str, path: Path) -> str:
    inside = sorted(entry.name for entry in path.glob("*.gguf"))
    if not inside and (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return f"{text} is a checkpoint: `woolly convert {text} OUT` writes it as a GGUF file"
    if not inside:
        wanted = "the path of a GGUF file, or a folder with config.json and safetensors"
        return f"{text} is a folder without GGUF files: give {wanted}"
    return f"{text} is a folder: give the path of a GGUF file in it, such as {path / inside[0]}"


def similar_models(text: str, cutoff: float = 0.8) -> list[str]:
    """Returns known names that are close to this one or begin with it: the catalogue's and those on this machine."""
    wanted = text.lower()
    known = _known(tags=":" in wanted)
    begun = [name for key, name in known.items() if len(wanted) >= 4 and key.startswith(wanted)]
    near = [known[key] for key in _near(wanted, known, cutoff)]
    return list(dict.fromkeys([*begun, *near]))[:3]


def _near(wanted: str, known: Iterable[str], cutoff: float) -> list[str]:
    """Returns the three closest names, none that takes more than a few changed characters to reach."""
    most = max(2, len(wanted) // 5)
    return [
        name for name in difflib.get_close_matches(wanted, known, n=3, cutoff=cutoff) if _changes(wanted, name) <= most
    ]


def _changes(one: str, other: str) -> int:
    """Returns how many characters must be put in, left out or replaced to make one text of the other."""
    row = list(range(len(other) + 1))
    for i, character in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (character != wanted))
    return row[-1]


def _known(tags: bool) -> dict[str, str]:
    """Returns all known names, by their lower-case form; the catalogue's with a tag only if asked for."""
    names = {name: name for name in catalogue_names() if tags or ":" not in name}
    with contextlib.suppress(OSError, StoreError):
        for model in list_models():
            for name in (model.name, *model.aliases):
                names.setdefault(name.lower(), model.name)
                names.setdefault(re.sub(r".*/|\.gguf$", "", name.lower()), model.name)
    return names


def _published(file: str) -> str:
    """Returns the name to pull a file of whisper.cpp's form by: the catalogue's, or that of its place on the hub."""
    repo = "ggml-org/parakeet-GGUF" if file.lower().startswith("ggml-parakeet") else "ggerganov/whisper.cpp"
    return [f"hf:{repo}/{file}", *names_in_catalogue(repo, file)][-1]


def _advice(text: str, path: Path) -> str:
    """Returns the names close to this one: of the catalogue, of this machine, and of files in the same folder."""
    # Without the folder and the ending, which the files share: they would make any two short names alike.
    names = {key.removesuffix(".gguf"): name for key, name in _known(tags=":" in text).items()}
    beside: dict[str, str] = {}
    with contextlib.suppress(OSError):
        beside = {p.stem.lower(): str(p) for p in [*path.parent.glob("*.gguf"), *path.parent.glob("ggml-*.bin")][:1000]}
    near = [beside[key] for key in _near(path.stem.lower(), beside, 0.6)]
    near += [names[key] for key in _near(text.lower().removesuffix(".gguf"), names, 0.6)]
    if near:
        return f"did you mean {' or '.join([*dict.fromkeys(near)][:3])}?"
    if is_whisper_file(path.name):
        return f"give the path of the file, or fetch it: `woolly pull {_published(path.name)}`"
    known = ", ".join(sorted(wheel_models.WHEEL_MODELS))
    return f"give the path of a GGUF file, or a name such as {known}, hf:org/repo:Q4_K_M, or one of `woolly list`"
