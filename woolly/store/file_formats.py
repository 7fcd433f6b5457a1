"""File names of models: GGUF, whisper.cpp's `ggml-*.bin`, projectors and draft heads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FILE = r"[^\\:]+\.gguf|(?:[^\\:]+/)?ggml-[^\\:/]+\.bin"  # path in a repository, case-insensitive
_ENDING = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_TYPE = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q[0-9]\w*|BF16|F16|F32|FP16|FP32|INT[0-9]+))(?=[-._]|$)", re.IGNORECASE)
# Prefixes and suffixes of draft heads, which cannot run without a model.
_HEAD = re.compile(r"(?:mtp|eagle3|dflash|dspark)-|.*-eagle3$")
_WHISPER = re.compile(r"(?:.*/)?ggml-[^/]+\.bin", re.IGNORECASE)


def is_whisper_file(name: str) -> bool:
    """True if a file is named like whisper.cpp's models."""
    return _WHISPER.fullmatch(name) is not None


def is_model_file(name: str) -> bool:
    """True if a file is named like a model."""
    return name.lower().endswith(".gguf") or is_whisper_file(name)


def is_projector(name: str) -> bool:
    """True if a file is named like a projector, with `mmproj` before or after the model's name."""
    return "mmproj" in name.rpartition("/")[2].lower()


def is_companion(name: str) -> bool:
    """True if a file is named like a projector or draft head, which cannot run alone."""
    return is_projector(name) or _HEAD.match(plain_name(name).lower()) is not None


def plain_name(name: str) -> str:
    """Return the name of a GGUF file without folder, shard number, suffix and weight types."""
    return _TYPE.sub("", _ENDING.sub("", name.rpartition("/")[2]))


def types_of(name: str) -> list[str]:
    """Return the weight types in a file name, such as Q8_0."""
    return _TYPE.findall(_ENDING.sub("", name.rpartition("/")[2]))


def magic_error(name: str, first: bytes) -> str | None:
    """Return the problem with a model's first bytes, or None if they match its name or it is not a model."""
    if is_whisper_file(name):
        return None if first[:4] == b"lmgg" else "it is not a file of whisper.cpp"
    return None if not name.lower().endswith(".gguf") or first[:4] == b"GGUF" else "it is not a GGUF file"


def find_files(folder: Path, place: str = "**/") -> Iterator[Path]:
    """Yield files with model names in a folder and its subfolders, or only in the folder if `place` is ""."""
    if folder.is_dir():
        for name in ("*.gguf", "ggml-*.bin"):
            yield from folder.glob(place + name)
