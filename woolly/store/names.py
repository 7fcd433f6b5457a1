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
_KINDS = re.compile(r"-(?:instruct|it|chat|text)$")  # Ollama's tags may have these suffixes, which add no information


@dataclass(frozen=True)
class CatalogueEntry:
    """Model of the catalogue with its name on the hub."""

    name: str  # family:tag
    hub: HubName
    architecture: str
    licence: str
    size: Tag | None  # catalogue entry; None for a type other than the default


def find_in_catalogue(text: str) -> CatalogueEntry | None:
    """Return the model for `family`, `family:tag` or `family:tag-type` (case-insensitive), or None.

    For a known family with an unknown tag, StoreError lists the available tags.
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
        return None  # the default model, which is not downloaded from the hub
    if size is None:
        raise StoreError(f"{name} has no {typed!r} in the catalogue; it has {', '.join(family.tags)}")
    default = quant in (None, size.quant)
    return CatalogueEntry(
        f"{name}:{tag}" + ("" if default else f"-{str(quant).lower()}"),
        HubName.parse(size.hub_name(quant)),
        size.architecture,
        size.licence,
        size if default else None,
    )


def names_in_catalogue(repo: str, file: str) -> list[str]:
    """Return the catalogue names of a hub file, shortest last, or an empty list."""
    quant, names = quant_of(file), []
    for name, family in all_families().items():
        for tag, size in family.tags.items():
            kind = quant if size.file is None else quant or size.quant
            if size.repo.lower() == repo.lower() and kind is not None and size.file_of(kind) in (None, file):
                names.append(f"{name}:{tag}" + ("" if kind == size.quant else f"-{kind.lower()}"))
                names += [name] if _is_short(name, tag, size, kind) else []
    return names


def _is_short(name: str, tag: str, size: Tag, quant: str) -> bool:
    """True if the family name alone refers to this file. smollm2 is the default model."""
    return quant == size.quant and tag == next(iter(all_families()[name].tags)) and find_wheel_model(name) is None


def catalogue_names() -> list[str]:
    """Return all catalogue names: the default model, and each family with and without tags."""
    names = [known for model in wheel_models.WHEEL_MODELS.values() for known in (model.name, *model.aliases)]
    for name, family in all_families().items():
        names += [name, *(f"{name}:{tag}" for tag in family.tags)]
    return list(dict.fromkeys(names))


def is_in_catalogue(name: str) -> bool:
    """True if `name` is in the catalogue."""
    return find_wheel_model(name) is not None or find_in_catalogue(name) is not None


def is_bare_repo(spec: str) -> bool:
    """True if `spec` has the form org/repo or org/repo:TYPE, which may also be a path."""
    return re.fullmatch(rf"{_REPO}(?::[\w.-]+)?", spec) is not None and not is_model_file(spec)


def is_url(spec: str) -> bool:
    """Return True if `spec` is an address instead of a name or a path."""
    return re.match(r"https?://\S+$", spec) is not None


def expand_home(spec: str) -> str:
    """Expand ~ at the start of a path. Shells do not expand `--model=~/x.gguf`, and settings files are not expanded."""
    return os.path.expanduser(spec) if spec.startswith("~") and not os.path.exists(spec) else spec  # noqa: PTH110, PTH111


def is_path(spec: str) -> bool:
    """True if a file with this name exists, or a folder whose name has the form of a repository."""
    spec = expand_home(spec)
    with contextlib.suppress(OSError, ValueError):  # the name is too long or contains NUL
        return Path(spec).is_file() or (is_bare_repo(spec) and Path(spec).exists())
    return False


def remote_name(spec: str) -> HubName | str | None:
    """Return the hub name or address for `spec`, or None for other strings, such as paths.

    The hub's web page of a repository counts as the repository, and the page of a file (`/blob/`) as the file
    (`/resolve/`). Callers check `is_path` first, because existing paths take precedence.
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
