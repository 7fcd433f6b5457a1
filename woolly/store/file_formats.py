"""File names of models: GGUF, whisper.cpp's `ggml-*.bin`, projectors and draft heads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FILE = r"[^\\:]+\.gguf|(?:[^\\:]+/)?ggml-[^\\:/]+\.bin"  # a path in a repository, in any case
_ENDING = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_TYPE = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q[0-9]\w*|BF16|F16|F32|FP16|FP32|INT[0-9]+))(?=[-._]|$)", re.IGNORECASE)
# Prefixes and suffixes of draft heads, which cannot be run alone.
_HEAD = re.compile(r"(?:mtp|eagle3|dflash|dspark)-|.*-eagle3$")
_WHISPER = re.compile(r"(?:.*/)?ggml-[^/]+\.bin", re.IGNORECASE)


def is_whisper_file(name: str) -> bool:
    """Returns whether a file is named as whisper.cpp's are."""
    return _WHISPER.fullmatch(name) is not None


def is_model_file(name: str) -> bool:
    """Returns whether a file is named as a model is."""
    return name.lower().endswith(".gguf") or is_whisper_file(name)


def is_projector(name: str) -> bool:
    """Returns whether a file is named as projectors are; `mmproj` stands before or after the name of the model."""
    return "mmproj" in name.rpartition("/")[2].lower()


def is_companion(name: str) -> bool:
    """Returns whether a file is named as those are that cannot be run alone: projectors and draft heads."""
    return is_projector(name) or _HEAD.match(plain_name(name).lower()) is not None


def plain_name(name: str) -> str:
    """Returns the name of a GGUF file without its folder, its shard, its ending and its types."""
    return _TYPE.sub("", _ENDING.sub("", name.rpartition("/")[2]))


def types_of(name: str) -> list[str]:
    """Returns the weight types that a file is named by, such as Q8_0."""
    return _TYPE.findall(_ENDING.sub("", name.rpartition("/")[2]))


def magic_error(name: str, first: bytes) -> str | None:
    """Returns the problem of a model's first bytes; None if they fit its name, and for files that are no models."""
    if is_whisper_file(name):
        return None if first[:4] == b"lmgg" else "it is not a file of whisper.cpp"
    return None if not name.lower().endswith(".gguf") or first[:4] == b"GGUF" else "it is not a GGUF file"


def find_files(folder: Path, place: str = "**/") -> Iterator[Path]:
    """Yields the files that are named as models are: in a folder and below it, or in a place of it alone ("")."""
    if folder.is_dir():
        for name in ("*.gguf", "ggml-*.bin"):
            yield from folder.glob(place + name)
