"""Resolution of model names: the catalogue, the hub, or a URL."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from woolly.errors import StoreError
from woolly.store import wheel_models
from woolly.store.catalogue.families import Tag, all_families
from woolly.store.file_formats import FILE, is_model_file
from woolly.store.hub import HubName, quant_of
from woolly.store.wheel_models import find_wheel_model

_REPO = r"[\w-][\w.-]*/[\w-][\w.-]*"
_TYPE = re.compile(r"(?:^|-)((?:ud-)?(?:i?q\d\w*|tq\d_\d|mxfp4\w*|bf16|fp?16|fp?32))$")
_KINDS = re.compile(r"-(?:instruct|it|chat|text)$")  # Ollama's tags may say what the family's files are anyway


@dataclass(frozen=True)
class CatalogueEntry:
    """A model of the catalogue: what its name stands for on the hub."""

    name: str  # family:tag
    hub: HubName
    architecture: str
    licence: str
    size: Tag | None  # the entry of the catalogue; None for another type than its default one


def find_in_catalogue(text: str) -> CatalogueEntry | None:
    """Returns the model that `family`, `family:tag` or `family:tag-type` means, in any case; None for another name.

    StoreError with the tags that exist if the family is known and the tag is not.
    """
    name, _, typed = text.lower().partition(":")
    family = all_families().get(name)
    if family is None:
        return None
    found = _TYPE.search(typed)
    quant = re.sub("^FP", "F", found[1].upper()) if found else None
    tag = _KINDS.sub("", typed[: found.start()] if found else typed) or "latest"
    if tag == "latest":
        tag = next(iter(family.tags))
    size = family.tags.get(tag)
    if size is None and find_wheel_model(text) is not None:
        return None  # the default model, which no hub has to bring
    if size is None:
        raise StoreError(f"{name} has no {typed!r} in the catalogue: it has {', '.join(family.tags)}")
    default = quant in (None, size.quant)
    return CatalogueEntry(
        f"{name}:{tag}" + ("" if default else f"-{str(quant).lower()}"),
        HubName.parse(size.hub_name(quant)),
        size.architecture,
        size.licence,
        size if default else None,
    )


def names_in_catalogue(repo: str, file: str) -> list[str]:
    """Returns the names in the catalogue of a file of the hub, the shortest last; none if the table lacks it."""
    quant, names = quant_of(file), []
    for name, family in all_families().items():
        for tag, size in family.tags.items():
            kind = quant if size.file is None else quant or size.quant
            if size.repo.lower() == repo.lower() and kind is not None and size.file_of(kind) in (None, file):
                names.append(f"{name}:{tag}" + ("" if kind == size.quant else f"-{kind.lower()}"))
                names += [name] if _is_short(name, tag, size, kind) else []
    return names


def _is_short(name: str, tag: str, size: Tag, quant: str) -> bool:
    """Returns whether the bare name of the family means this file; smollm2 means the default model."""
    return quant == size.quant and tag == next(iter(all_families()[name].tags)) and find_wheel_model(name) is None


def catalogue_names() -> list[str]:
    """Returns every name of the catalogue: the default model's, each family, and each of its tags."""
    names = [known for model in wheel_models.WHEEL_MODELS.values() for known in (model.name, *model.aliases)]
    for name, family in all_families().items():
        names += [name, *(f"{name}:{tag}" for tag in family.tags)]
    return list(dict.fromkeys(names))


def is_in_catalogue(name: str) -> bool:
    """Returns whether `name` is one of the catalogue."""
    return find_wheel_model(name) is not None or find_in_catalogue(name) is not None


def is_bare_repo(spec: str) -> bool:
    """Returns whether `spec` has the form org/repo or org/repo:TYPE, which may be a path too."""
    return re.fullmatch(rf"{_REPO}(?::[\w.-]+)?", spec) is not None and not is_model_file(spec)


def is_url(spec: str) -> bool:
    """Returns whether `spec` is an address rather than a name or a path."""
    return re.match(r"https?://\S+$", spec) is not None


def expand_home(spec: str) -> str:
    """Returns what a path that begins with ~ means: shells leave it in `--model=~/x.gguf`, and files of settings."""
    return os.path.expanduser(spec) if spec.startswith("~") and not os.path.exists(spec) else spec  # noqa: PTH110, PTH111


def is_path(spec: str) -> bool:
    """Returns whether a file has this name, or a folder that has the form of a repository's name."""
    spec = expand_home(spec)
    with contextlib.suppress(OSError, ValueError):  # a name that is too long; a NUL
        return Path(spec).is_file() or (is_bare_repo(spec) and Path(spec).exists())
    return False


def remote_name(spec: str) -> HubName | str | None:
    """Returns the hub's name or the address that `spec` means; None for anything else, such as a path.

    A hub's page in a browser is its repository, and the page of a file (`/blob/`) is the file (`/resolve/`). The caller
    asks `is_path` first: a path of this name wins.
    """
    if spec.lower().startswith("hf:"):
        return HubName.parse(spec)
    page = re.fullmatch(r"(https?://)?([^/\s]+)/(\S+)", spec, re.IGNORECASE)
    if page is not None and page[2].lower() in _hosts():
        tail = re.sub(r"[?#].*", "", page[3]).strip("/")
        if file := re.fullmatch(rf"({_REPO})/(?:blob|resolve|raw)/([^/]+)/({FILE})", tail, re.IGNORECASE):
            return f"{page[1] or 'https://'}{page[2]}/{file[1]}/resolve/{file[2]}/{file[3]}"
        if page[1] is None or not is_model_file(tail):
            return HubName.parse(f"hf:{re.sub(r'/(tree|blob)/.*', '', tail)}")
    if is_url(spec):
        return spec
    if (named := find_in_catalogue(spec)) is not None:
        return named.hub
    return HubName.parse(f"hf:{spec}") if is_bare_repo(spec) else None


def _hosts() -> set[str]:
    return {"huggingface.co", "www.huggingface.co", "hf.co", urlsplit(os.environ.get("HF_ENDPOINT") or "").netloc}
