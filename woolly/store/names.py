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
from woolly.store.catalogue.families import Tag, all_families, read_catalogue
from woolly.store.catalogue.spelling import normalize_name
from woolly.store.file_formats import FILE, is_model_file
from woolly.store.hub import HubName, quant_of
from woolly.store.wheel_models import find_wheel_model

_REPO = r"[\w-][\w.-]*/[\w-][\w.-]*"
_TYPED = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._:-]*?)(?:[-:](?P<type>(?:ud-)?(?:i?q\d\w*|tq\d_\d|mxfp4\w*|bf16|fp?16|fp?32)))?"
)
# Parts of Ollama's tags that add no information; active sizes: 30b-a3b.
_DETAILS = re.compile(r"[-:](?:instruct|it|chat|text|qat|a\d+(?:\.\d+)?b)(?=[-:]|$)")


@dataclass(frozen=True)
class CatalogueEntry:
    """Model of the catalogue with its name on the hub."""

    name: str  # family:tag
    hub: HubName
    architecture: str
    licence: str
    size: Tag | None  # catalogue entry; None for a type other than the default


def find_in_catalogue(text: str) -> CatalogueEntry | None:
    """Return the model for `family`, `family:tag` or `family:tag-type`, in any spelling, or None.

    `qwen3:30b-a3b-instruct-q8_0` and `Qwen3-30B` are `qwen3:30b`. StoreError lists the tags of a known family with an
    unknown tag, and has the reason for a name that is not available.
    """
    found = _TYPED.fullmatch(text.lower())
    if found is None:
        return None
    quant = re.sub("^FP", "F", found["type"].upper()) if found["type"] else None
    typed = found["name"].removesuffix(":latest")
    if (named := _family_and_tag(typed)) is None:
        return None
    name, tag = named
    family = all_families()[name]
    if tag is None:
        tag = next(iter(family.tags))
        if quant is None and find_wheel_model(text) is not None:
            return None  # the default model, which is not downloaded from the hub
    size = family.tags.get(tag)
    if size is None and find_wheel_model(text) is not None:
        return None
    if size is None:
        raise StoreError(f"{name} has no {tag!r} in the catalogue; it has {', '.join(family.tags)}")
    default = quant in (None, size.quant)
    return CatalogueEntry(
        f"{name}:{tag}" + ("" if default else f"-{str(quant).lower()}"),
        HubName.parse(size.hub_name(quant)),
        size.architecture,
        size.licence,
        size if default else None,
    )


def sizes_of_family(text: str) -> list[CatalogueEntry]:
    """Return the sizes of a family for its bare name, the default first; empty for all other names."""
    with contextlib.suppress(StoreError):
        if find_wheel_model(text) is None and (named := _family_and_tag(text.lower().removesuffix(":latest"))):
            entries = [find_in_catalogue(f"{named[0]}:{tag}") for tag in all_families()[named[0]].tags]
            return [entry for entry in entries if entry is not None] if named[1] is None else []
    return []


def choosable_sizes(text: str) -> list[CatalogueEntry]:
    """Return the sizes of a family of generative models for its bare name, of which `woolly pull` chooses one."""
    sizes = sizes_of_family(text)
    return sizes if sizes and all_families()[sizes[0].name.partition(":")[0]].is_generative else []


def _family_and_tag(typed: str) -> tuple[str, str | None] | None:
    """Return family and tag of a name in any spelling; the tag may be unknown, and is None for a bare family name.

    Raises StoreError for a name that is not available.
    """
    catalogue = read_catalogue()
    name, colon, tag = typed.partition(":")
    if tag == "cloud" or typed.endswith("-cloud"):
        raise StoreError(f"{typed} runs only in Ollama's cloud; {typed.removesuffix('cloud')[:-1]} may run here")
    plain = _DETAILS.sub("", f":{tag}").removeprefix(":") if colon else _DETAILS.sub("", typed)
    for one in (typed, f"{name}:{plain}" if colon and plain else plain or name):
        if (reason := catalogue.unavailable.get(normalize_name(one))) is not None:
            raise StoreError(f"{typed} is not available: {reason}")
        if (named := catalogue.spellings.get(normalize_name(one))) is not None:
            return named
    if (reason := catalogue.unavailable.get(normalize_name(name))) is not None:
        raise StoreError(f"{typed} is not available: {reason}")
    family = catalogue.spellings.get(normalize_name(name)) if colon else None
    return None if family is None else (family[0], plain or family[1])


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
