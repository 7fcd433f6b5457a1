"""A model in a few words: architecture, size, mixture of types."""

from __future__ import annotations

from collections import Counter

from woolly.gguf import GGUFFile
from woolly.quantize.mixes import MIXES


def describe_model(file: GGUFFile) -> str:
    """Architecture, size and mixture of types in a few words, such as `llama 134.52 M Q4_1`."""
    n = sum(tensor.n_elements for tensor in file.tensors.values())
    architecture = str(file.metadata.get("general.architecture", "unknown"))
    printable = "".join(c if c.isprintable() else "?" for c in architecture)
    return (
        f"{printable} {n / 1e9:.2f} B {mixture(file)}" if n >= 1e9 else f"{printable} {n / 1e6:.2f} M {mixture(file)}"
    )


def mixture(file: GGUFFile) -> str:
    """The name of the file's mixture of types, such as Q4_K_M; if the file names none, the type with the most bytes."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.n_bytes
    largest = sizes.most_common(1)[0][0] if sizes else "empty"
    kind = file.metadata.get("general.file_type")
    if not isinstance(kind, int):
        return largest
    return next((mix.name for mix in MIXES.values() if mix.file_type == kind), largest)


def mean_bits(file: GGUFFile) -> float:
    """Bits per weight, over all tensors."""
    n = sum(tensor.n_elements for tensor in file.tensors.values())
    return 8 * sum(tensor.n_bytes for tensor in file.tensors.values()) / max(n, 1)
