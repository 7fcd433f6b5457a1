"""Main quantization type of a file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.gguf.reader import GGUFFile


def main_type(file: GGUFFile) -> str | None:
    """Return the weight type with the most bytes, or None if there are no tensors."""
    n_bytes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        n_bytes[tensor.type.name] += tensor.n_bytes
    return n_bytes.most_common(1)[0][0] if n_bytes else None
