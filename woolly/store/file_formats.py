"""The forms of model files: GGUF, and whisper.cpp's, which are named `ggml-*.bin`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FILE = r"[^\\:]+\.gguf|(?:[^\\:]+/)?ggml-[^\\:/]+\.bin"  # a path in a repository, in any case
_WHISPER = re.compile(r"(?:.*/)?ggml-[^/]+\.bin", re.IGNORECASE)


def is_whisper_file(name: str) -> bool:
    """Returns whether a file is named as whisper.cpp's are."""
    return _WHISPER.fullmatch(name) is not None


def is_model_file(name: str) -> bool:
    """Returns whether a file is named as a model is."""
    return name.lower().endswith(".gguf") or is_whisper_file(name)


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
