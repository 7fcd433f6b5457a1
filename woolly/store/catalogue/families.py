"""Catalogue of model families, with one tag per size.

Woolly ships `catalogue.json` in this folder. A newer version that the user has pulled (update.py) is stored as
`catalogue.json` in WOOLLY_HOME. The first tag of a family is the default for the bare name and `:latest`. Sizes are
those of the default file; estimates are computed from parameters and bits. Entries are not checked against the hub.
Pulling a model with a wrong address fails with an error that names the address.
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
from woolly.store.catalogue.spelling import normalize_name
from woolly.store.model_folder import models_folder

Purpose = Literal["chat", "base", "embed", "rerank", "transcribe"]

_FORMAT = 1
_SHIPPED = Path(__file__).with_name("catalogue.json")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Tag:
    """One size of a family: a repository on the hub, and its default file."""

    repo: str  # org/name
    quant: str
    architecture: str  # general.architecture of the file
    licence: str
    n_parameters: int
    n_bytes: int  # size of the default file, with all shards
    n_active: int  # parameters used per token; fewer than all in MoE models
    is_estimated: bool  # n_bytes is estimated from parameters and bits
    file: str | None = None  # default file, if weight types do not distinguish the files: ggml-base.bin

    def hub_name(self, quant: str | None = None) -> str:
        """Return the hub name of the default file, or of the file with another type."""
        quant = quant or self.quant
        return f"hf:{self.repo}:{quant}" if self.file is None else f"hf:{self.repo}/{self.file_of(quant)}"

    def file_of(self, quant: str) -> str | None:
        """Return the file with this type in whisper.cpp's naming (ggml-base-q5_1.bin). None: GGUF repository."""
        if self.file is None or quant == self.quant:
            return self.file
        stem = self.file.removesuffix(".bin").removesuffix(f"-{self.quant.lower()}")
        return f"{stem}-{quant.lower()}.bin"

    @property
    def gigabytes(self) -> str:
        """Readable size: 2.7 GB, ~2.7 GB if estimated, 0.03 GB for a small file."""
        value = self.n_bytes / 1e9
        digits = 0 if value >= 100 else 1 if value >= 0.1 else 2
        return f"{'~' if self.is_estimated else ''}{value:.{digits}f} GB"


@dataclass(frozen=True)
class Family:
    """Model family: purposes, and sizes by tag."""

    purpose: Purpose
    tags: Mapping[str, Tag]

    @property
    def is_generative(self) -> bool:
        """True if its models write answers token by token. Embeddings and transcripts are not."""
        return self.purpose in ("chat", "base")


@dataclass(frozen=True)
class Catalogue:
    """Families by name, and related data."""

    updated: str  # date, such as 2026-11-17
    families: Mapping[str, Family]
    suggested: tuple[str, ...]  # small models for new users, best first
    nameless: Mapping[str, str]  # architectures without a name, with the reason
    spellings: Mapping[str, tuple[str, str | None]]  # family and tag by normalized name; no tag: the bare family name
    unavailable: Mapping[str, str]  # names that users of other programs type, normalized, with the reason


def all_families() -> Mapping[str, Family]:
    """Return the families by name."""
    return read_catalogue().families


def models_for(purpose: Purpose) -> list[str]:
    """Return the names of the families for a purpose."""
    return [name for name, family in all_families().items() if family.purpose == purpose]


def pulled_catalogue() -> Path:
    """Return the path of the pulled catalogue, which may not exist."""
    return models_folder().parent / "catalogue.json"


def read_catalogue() -> Catalogue:
    """Return the pulled catalogue if it is valid and not older than the shipped one, else the shipped one."""
    shipped = _read(_SHIPPED, 0)
    with contextlib.suppress(OSError, StoreError):
        own = pulled_catalogue()
        found = _read(own, own.stat().st_mtime_ns)
        return found if found.updated >= shipped.updated else shipped
    return shipped


@functools.lru_cache(maxsize=4)
def _read(path: Path, _: int) -> Catalogue:
    return parse_catalogue(path.read_bytes())


def parse_catalogue(data: bytes) -> Catalogue:
    """Parse a catalogue. StoreError names an invalid entry."""
    try:
        found = json.loads(data)
        if found["format"] != _FORMAT:
            raise StoreError(
                f"the catalogue has the format {found['format']}, not {_FORMAT}; it needs another version of Woolly"
            )
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", found["updated"]):
            raise StoreError(f"the catalogue's date {found['updated']!r} is not a date such as 2026-11-17")
        families = {name: _family(name, family) for name, family in found["families"].items()}
        suggested, nameless = tuple(found["suggested"]), dict(found["nameless"])
        known = {f"{name}:{tag}" for name, family in families.items() for tag in family.tags}
        targets = {*known, *families}
        aliases = {alias: name for alias, name in found.get("aliases", {}).items() if name in targets}
        if unknown := set(suggested) - known:
            raise StoreError(f"the catalogue suggests {', '.join(sorted(unknown))}, which it does not have")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the catalogue cannot be read ({type(error).__name__}: {error})") from None
    unavailable = {normalize_name(name): str(reason) for name, reason in found.get("unavailable", {}).items()}
    return Catalogue(
        found["updated"],
        MappingProxyType(families),
        suggested,
        MappingProxyType(nameless),
        MappingProxyType(_spellings(families, aliases)),
        MappingProxyType(unavailable),
    )


def _spellings(families: Mapping[str, Family], aliases: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Return family and tag of all names without case and separators. The alias of a family is one of its tags too."""
    found: dict[str, tuple[str, str | None]] = {}
    for name in families:
        found[normalize_name(name)] = (name, None)
    for alias, target in aliases.items():
        name, _, tag = target.partition(":")
        found.setdefault(normalize_name(alias), (name, tag or None))
        for other in families[name].tags if not tag else (tag,):
            found.setdefault(normalize_name(f"{alias}:{other}"), (name, other))
    for name, family in families.items():
        for tag in family.tags:
            found.setdefault(normalize_name(f"{name}:{tag}"), (name, tag))
    return found


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
        raise StoreError(f"the catalogue's entry {name!r} has an invalid value")
    return tag
