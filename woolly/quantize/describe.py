"""Short description of a model: architecture, size, quantization mix."""

from __future__ import annotations

from collections import Counter

from woolly.gguf import GGUFFile
from woolly.quantize.mixes import MIXES


def describe_model(file: GGUFFile) -> str:
    """Return architecture, size and quantization mix, such as `llama 134.52 M Q4_1`."""
    n = sum(tensor.n_elements for tensor in file.tensors.values())
    architecture = str(file.metadata.get("general.architecture", "unknown"))
    printable = "".join(c if c.isprintable() else "?" for c in architecture)
    return (
        f"{printable} {n / 1e9:.2f} B {mixture(file)}" if n >= 1e9 else f"{printable} {n / 1e6:.2f} M {mixture(file)}"
    )


def mixture(file: GGUFFile) -> str:
    """Return the file's quantization mix, such as Q4_K_M, or without `general.file_type` the main weight type."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.n_bytes
    largest = sizes.most_common(1)[0][0] if sizes else "empty"
    kind = file.metadata.get("general.file_type")
    if not isinstance(kind, int):
        return largest
    return next((mix.name for mix in MIXES.values() if mix.file_type == kind), largest)


def mean_bits(file: GGUFFile) -> float:
    """Return the mean bits per weight of all tensors."""
    n = sum(tensor.n_elements for tensor in file.tensors.values())
    return 8 * sum(tensor.n_bytes for tensor in file.tensors.values()) / max(n, 1)
