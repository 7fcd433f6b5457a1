"""Resolution of a model name or path to a file."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from woolly.errors import StoreError
from woolly.store import wheel_models
from woolly.store.catalogue.spelling import closest_names
from woolly.store.checksum import is_intact
from woolly.store.derived import find_derived
from woolly.store.file_formats import is_whisper_file
from woolly.store.hub import HubName, find_local
from woolly.store.inventory import find_stored, list_models
from woolly.store.model_folder import models_folder
from woolly.store.names import (
    catalogue_names,
    choosable_sizes,
    expand_home,
    find_in_catalogue,
    is_bare_repo,
    is_in_catalogue,
    is_path,
    is_url,
    names_in_catalogue,
    remote_name,
    sizes_of_family,
)
from woolly.store.presets import Preset
from woolly.store.urls import find_downloaded
from woolly.store.wheel_models import find_wheel_model


def resolve(spec: str | os.PathLike[str]) -> Path:
    """Return the path of a GGUF file: an existing file, or a model on this machine by name."""
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
            state = "is damaged" if target.exists() else "is not downloaded yet"
            raise StoreError(f"the model {model.name} {state}; run `woolly pull {model.name}`")
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
            f"{text} cannot be read ({error.strerror or error}); expected the path of a readable GGUF file"
        ) from error
    if text and path.is_symlink():
        raise StoreError(f"{text} is a link to {path.readlink()}, which does not exist; download the model again")
    raise StoreError(f"there is no file or model named {text!r}: {_advice(text, path)}")


def find_derived_model(text: str) -> Preset | None:
    """Return the derived model with this name, created with Ollama's `create` in the models folder, or None.

    Files and models with this name take precedence. StoreError if the file of presets is invalid.
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
    """Return the file of a hub model. For a catalogue name, Ollama's copy is also accepted.

    The bare name of a family means a downloaded size, if the default is not downloaded.
    """
    found = find_local(wanted)
    if found is None and find_in_catalogue(text) is not None:
        if (stored := find_stored(f"ollama:{text}")) is not None:
            return stored.path
        sizes = (find_local(entry.hub) for entry in sizes_of_family(text))
        return next((path for path in sizes if path is not None), None)
    return found


def _not_here(text: str, remote: HubName | str) -> str:
    named = find_in_catalogue(text)
    if sizes := choosable_sizes(text):
        tags = ", ".join(entry.name.partition(":")[2] for entry in sizes)
        return (
            f"the model {text} is not downloaded yet; run `woolly pull {text}` for the largest size that runs well"
            f" here, or choose a size: {tags}"
        )
    if named is not None:
        size = f"{named.size.gigabytes}, " if named.size else ""
        return f"the model {text} is not downloaded yet; run `woolly pull {text}` ({size}{named.hub})"
    if not is_bare_repo(text):
        return f"{text} is not downloaded yet; run `woolly pull {text}`"
    if near := similar_models(text):
        return f"there is no file {text}, and {remote} is not downloaded; did you mean {' or '.join(near)}?"
    return f"there is no file {text}, and {remote} is not downloaded yet; run `woolly pull {remote}`"


def is_model_name(text: str) -> bool:
    """True if the string is clearly a model and not a prompt. The model may not be on disk."""
    if re.fullmatch(r"(hf|ollama|lmstudio):(\S+|\S.*\.gguf)", text, re.IGNORECASE):
        return True
    if not text or re.search(r"\s", text):
        return False
    with contextlib.suppress(OSError, StoreError):
        if is_in_catalogue(text) or find_stored(text) is not None or find_derived_model(text) is not None:
            return True
        remote = remote_name(text)
        # A prompt may also contain a slash, as in "and/or".
        plain = not is_bare_repo(text) or re.search(r"-gguf(:|$)|:", text, re.IGNORECASE) is not None
        return remote is not None and (plain or (isinstance(remote, HubName) and find_local(remote) is not None))
    return False


def _folder(text: str, path: Path) -> str:
    inside = sorted(entry.name for entry in path.glob("*.gguf"))
    if not inside and (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return f"{text} is a checkpoint: `woolly convert {text} OUT` writes it as a GGUF file"
    if not inside:
        wanted = "the path of a GGUF file, or a folder with config.json and safetensors"
        return f"{text} is a folder without GGUF files; expected {wanted}"
    return f"{text} is a folder; use the path of a GGUF file in it, such as {path / inside[0]}"


def similar_models(text: str, cutoff: float = 0.8) -> list[str]:
    """Return known names that are similar to this one or begin with it, from the catalogue and this machine."""
    wanted = text.lower()
    known = _known(tags=":" in wanted)
    begun = [name for key, name in known.items() if len(wanted) >= 4 and key.startswith(wanted)]
    near = [known[key] for key in closest_names(wanted, known, cutoff)]
    return list(dict.fromkeys([*begun, *near]))[:3]


def _known(tags: bool) -> dict[str, str]:
    """Return all known names by their lower-case form. Catalogue names only have tags if `tags` is set."""
    names = {name: name for name in catalogue_names() if tags or ":" not in name}
    with contextlib.suppress(OSError, StoreError):
        for model in list_models():
            for name in (model.name, *model.aliases):
                names.setdefault(name.lower(), model.name)
                names.setdefault(re.sub(r".*/|\.gguf$", "", name.lower()), model.name)
    return names


def _published(file: str) -> str:
    """Return the name for pulling a whisper.cpp file: its catalogue name, or its path on the hub."""
    repo = "ggml-org/parakeet-GGUF" if file.lower().startswith("ggml-parakeet") else "ggerganov/whisper.cpp"
    return [f"hf:{repo}/{file}", *names_in_catalogue(repo, file)][-1]


def _advice(text: str, path: Path) -> str:
    """Return similar names: from the catalogue, this machine, and the same folder."""
    # Compare without folder and suffix, which would make any two short names similar.
    names = {key.removesuffix(".gguf"): name for key, name in _known(tags=":" in text).items()}
    beside: dict[str, str] = {}
    with contextlib.suppress(OSError):
        beside = {p.stem.lower(): str(p) for p in [*path.parent.glob("*.gguf"), *path.parent.glob("ggml-*.bin")][:1000]}
    near = [beside[key] for key in closest_names(path.stem.lower(), beside, 0.6)]
    near += [names[key] for key in closest_names(text.lower().removesuffix(".gguf"), names, 0.6)]
    if near:
        return f"did you mean {' or '.join([*dict.fromkeys(near)][:3])}?"
    if is_whisper_file(path.name):
        return f"give the path of the file, or fetch it: `woolly pull {_published(path.name)}`"
    known = ", ".join(sorted(wheel_models.WHEEL_MODELS))
    return f"give the path of a GGUF file, or a name such as {known}, hf:org/repo:Q4_K_M, or one of `woolly list`"
