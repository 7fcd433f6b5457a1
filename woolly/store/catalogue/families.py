"""The catalogue: families of models that people name, one tag per size.

`catalogue.json` beside this file is the catalogue that Woolly ships; a later one that a person has pulled (update.py)
is `catalogue.json` in Woolly's home. The first tag of a family is the one that the bare name and `:latest` mean. Sizes
are those of the default file; estimated ones come from parameters and bits. Nothing here is checked against the hub: a
wrong address fails when it is pulled, with a sentence that names it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from woolly.errors import StoreError
from woolly.store.model_folder import models_folder

Purpose = Literal["chat", "base", "embed", "rerank", "transcribe"]

_FORMAT = 1
_SHIPPED = Path(__file__).with_name("catalogue.json")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Tag:
    """One size of a family: a repository on the hub, and the file of it that is meant if no type is named."""

    repo: str  # org/name
    quant: str
    architecture: str  # general.architecture of the file
    licence: str
    n_parameters: int
    n_bytes: int  # of the default file, all shards
    n_active: int  # parameters that compute one token: fewer than all in a mixture of experts
    is_estimated: bool  # whether n_bytes comes from parameters and bits rather than from a file
    file: str | None = None  # the default file, if types do not tell the files of the repository apart: ggml-base.bin

    def hub_name(self, quant: str | None = None) -> str:
        """Returns the name on the hub of the default file, or of that of another type."""
        quant = quant or self.quant
        return f"hf:{self.repo}:{quant}" if self.file is None else f"hf:{self.repo}/{self.file_of(quant)}"

    def file_of(self, quant: str) -> str | None:
        """Returns the file of a type, as whisper.cpp names it: ggml-base-q5_1.bin; None if types find the files."""
        if self.file is None or quant == self.quant:
            return self.file
        stem = self.file.removesuffix(".bin").removesuffix(f"-{self.quant.lower()}")
        return f"{stem}-{quant.lower()}.bin"

    @property
    def gigabytes(self) -> str:
        """Returns the size for people: 2.7 GB, ~2.7 GB if it is estimated, 0.03 GB for a small one."""
        value = self.n_bytes / 1e9
        digits = 0 if value >= 100 else 1 if value >= 0.1 else 2
        return f"{'~' if self.is_estimated else ''}{value:.{digits}f} GB"


@dataclass(frozen=True)
class Family:
    """A model family: its purposes, and its sizes by tag."""

    purpose: Purpose
    tags: Mapping[str, Tag]


@dataclass(frozen=True)
class Catalogue:
    """Families by name, and what belongs to them."""

    updated: str  # the day, 2026-11-17
    families: Mapping[str, Family]
    suggested: tuple[str, ...]  # small models for a first answer, the best first
    nameless: Mapping[str, str]  # architectures that no name has, with the reason


def all_families() -> Mapping[str, Family]:
    """Returns the families by name."""
    return read_catalogue().families


def models_for(purpose: Purpose) -> list[str]:
    """Returns the names of the families that were made for a purpose."""
    return [name for name, family in all_families().items() if family.purpose == purpose]


def own_catalogue() -> Path:
    """Returns the path of the catalogue that a person has pulled; the file need not exist."""
    return models_folder().parent / "catalogue.json"


def read_catalogue() -> Catalogue:
    """Returns the pulled catalogue if it is sound and not older than the shipped one, else the shipped one."""
    shipped = _read(_SHIPPED, 0)
    with contextlib.suppress(OSError, StoreError):
        own = own_catalogue()
        found = _read(own, own.stat().st_mtime_ns)
        return found if found.updated >= shipped.updated else shipped
    return shipped


@functools.lru_cache(maxsize=4)
def _read(path: Path, _: int) -> Catalogue:
    return parse_catalogue(path.read_bytes())


def parse_catalogue(data: bytes) -> Catalogue:
    """Returns a catalogue; StoreError that names the entry if something in it is not as it should be."""
    try:
        found = json.loads(data)
        if found["format"] != _FORMAT:
            raise StoreError(f"the catalogue has the format {found['format']}, not {_FORMAT}: it needs another Woolly")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", found["updated"]):
            raise StoreError(f"the catalogue's day {found['updated']!r} is not a date such as 2026-11-17")
        families = {name: _family(name, family) for name, family in found["families"].items()}
        suggested, nameless = tuple(found["suggested"]), dict(found["nameless"])
        known = {f"{name}:{tag}" for name, family in families.items() for tag in family.tags}
        if unknown := set(suggested) - known:
            raise StoreError(f"the catalogue suggests {', '.join(sorted(unknown))}, which it does not have")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the catalogue cannot be read ({type(error).__name__}: {error})") from None
    return Catalogue(found["updated"], MappingProxyType(families), suggested, MappingProxyType(nameless))


def _family(name: str, found: dict[str, Any]) -> Family:
    if not _NAME.fullmatch(name) or found["kind"] not in get_args(Purpose) or not found["tags"]:
        raise StoreError(f"the catalogue's family {name!r} needs a plain name, a kind and tags")
    tags = {tag: _tag(f"{name}:{tag}", entry) for tag, entry in found["tags"].items()}
    return Family(found["kind"], MappingProxyType(tags))


def _tag(name: str, found: dict[str, Any]) -> Tag:
    tag = Tag(
        repo=found["repo"],
        quant=found["quant"],
        architecture=found["architecture"],
        licence=found["licence"],
        n_parameters=found["parameters"],
        n_bytes=found["size"],
        n_active=found.get("active", found["parameters"]),
        is_estimated=found.get("estimated", False),
        file=found.get("file"),
    )
    texts = all(isinstance(text, str) and text.isprintable() and text for text in (tag.architecture, tag.licence))
    numbers = all(type(n) is int and n > 0 for n in (tag.n_parameters, tag.n_bytes, tag.n_active))
    is_named = _NAME.fullmatch(name.partition(":")[2]) and re.fullmatch(r"[A-Z0-9_]+", tag.quant)
    is_repo = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", tag.repo) and ".." not in tag.repo
    is_file = tag.file is None or re.fullmatch(r"ggml-[\w.-]+\.bin", tag.file)
    if not (texts and numbers and is_named and is_repo and is_file) or tag.n_active > tag.n_parameters:
        raise StoreError(f"the catalogue's entry {name!r} has a value that it cannot have")
    return tag
