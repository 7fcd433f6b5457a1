"""Companion files of a model: the projector (`mmproj`) and draft models (`mtp-`, `dflash-`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from woolly.store.file_formats import is_projector, plain_name, types_of
from woolly.store.model_folder import models_folder
from woolly.store.other_programs import ollama_projector

_WORDS = re.compile(r"^(?:mtp|dflash)(?:-|$)|mmproj|projector|model|vision", re.IGNORECASE)

# Preferred types. An encoder is small, and loses more with fewer bits than a text model.
_PREFERRED = ("F16", "FP16", "BF16", "Q8_0", "F32", "FP32")


def best_projector(names: Iterable[str], model: str, *, of_one_model: bool = True) -> str | None:
    """Return the projector that matches a model's name best, or None.

    A projector with the model's name is preferred, then one without a name, such as `mmproj-F16.gguf`. A projector with
    another name is only used if all files are of the same model, as in a repository of the hub.
    """
    return _best([name for name in names if is_projector(name)], model, of_one_model)


def best_draft(names: Iterable[str], model: str, *, of_one_model: bool = True) -> str | None:
    """Return the draft file that matches a model's name best, with the rules of `best_projector`.

    An MTP block (`mtp-`) is preferred to a block-diffusion head (`dflash-`).
    """
    names = list(names)
    for kind in ("mtp-", "dflash-"):
        blocks = [name for name in names if name.rpartition("/")[2].lower().startswith(kind)]
        if (found := _best(blocks, model, of_one_model)) is not None:
            return found
    return None


def _best(names: Iterable[str], model: str, of_one_model: bool) -> str | None:
    own = _stem(model)
    ranked = []
    for name in names:
        if not name.lower().endswith(".gguf"):
            continue
        stem = _stem(name)
        alike = 1 if not stem else 0 if own.startswith(stem) or stem.startswith(own) else 2
        if alike < 2 or of_one_model:
            ranked.append((alike, _rank(name), name))
    return min(ranked, default=(0, 0, None))[2]


def find_draft(model: Path) -> Path | None:
    """Return the draft file next to a model (`mtp-NAME.gguf`, `dflash-NAME.gguf`), or None."""
    for folder in _folders(model):
        others = [name for name in _names(folder) if name != model.name]
        name = best_draft(others, model.name, of_one_model=_is_repository(folder))
        if name is not None:
            return folder / name
    return None


def find_projectors(model: Path) -> list[Path]:
    """Return the projectors of a model: next to its file, or in Ollama's manifest."""
    found: list[Path] = []
    for folder in _folders(model):
        name = best_projector(_names(folder), model.name, of_one_model=_is_repository(folder))
        if name is not None:
            found.append(folder / name)
    if not found and re.fullmatch(r"sha256-[0-9a-f]{64}", model.name):
        own = ollama_projector(model)
        found += [] if own is None else [own]
    return found


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return []


def _folders(model: Path) -> list[Path]:
    """Return the folder of a file, and its parents within a repository, where large files are in folders by type."""
    folders = [model.parent]
    while _is_repository(folders[-1]) and _is_repository(folders[-1].parent):
        folders.append(folders[-1].parent)
    return folders


def _is_repository(folder: Path) -> bool:
    """True if all files of a folder are from one repository, in the hub's cache or LM Studio."""
    parts = folder.parts
    if folder.is_relative_to(own := models_folder() / "hf"):
        return len(folder.relative_to(own).parts) >= 2
    if "snapshots" in parts:
        at = parts.index("snapshots")
        return parts[at - 1].startswith("models--") and len(parts) > at + 1
    if "models" in parts and ({".lmstudio", "lm-studio"} & set(parts)):
        return len(parts) - parts.index("models") > 2
    return False


def _stem(name: str) -> str:
    """Return the letters and digits of a name, without its type and words used for projectors."""
    plain = plain_name(name)
    return re.sub(r"[^a-z0-9]", "", _WORDS.sub("", plain).lower())


def _rank(name: str) -> int:
    types = [found.upper() for found in types_of(name)]
    return next((_PREFERRED.index(one) for one in reversed(types) if one in _PREFERRED), len(_PREFERRED))
