"""What this machine is called, and how a model is called in tables beside it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from pathlib import Path

from woolly.gguf import GGUFFile

__all__ = ["cpu_name", "describe_model", "mean_bits", "mixture"]

# general.file_type, as GGUF numbers the mixtures of types.
_MIXTURES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS",
    32: "BF16", 38: "MXFP4",
}  # fmt: skip


def cpu_name() -> str:
    """The processor's model name, or the name of its instruction set where nothing tells more."""
    for command in (["lscpu"], ["sysctl", "machdep.cpu.brand_string"]):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10, env={**os.environ, "LC_ALL": "C"}
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if name := _model_name(done.stdout):
            return name
    listing = Path("/proc/cpuinfo")
    return _model_name(listing.read_text() if listing.exists() else "") or platform.processor() or platform.machine()


def describe_model(file: GGUFFile) -> str:
    """Architecture, size and mixture of types in a few words, such as `llama 134.52 M Q4_1`."""
    n = sum(tensor.n_elements for tensor in file.tensors.values())
    architecture = str(file.metadata.get("general.architecture", "unknown"))
    printable = "".join(c if c.isprintable() else "?" for c in architecture)
    return (
        f"{printable} {n / 1e9:.2f} B {mixture(file)}" if n >= 1e9 else f"{printable} {n / 1e6:.2f} M {mixture(file)}"
    )


def mixture(file: GGUFFile) -> str:
    """The name of the file's mixture of types, such as Q4_K_M; that of its largest type where it gives none."""
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.n_bytes
    largest = sizes.most_common(1)[0][0] if sizes else "empty"
    kind = file.metadata.get("general.file_type")
    return _MIXTURES.get(kind, largest) if isinstance(kind, int) else largest


def mean_bits(file: GGUFFile) -> float:
    """Bits per weight, over all tensors."""
    n = sum(tensor.n_elements for tensor in file.tensors.values())
    return 8 * sum(tensor.n_bytes for tensor in file.tensors.values()) / max(n, 1)


def _model_name(listing: str) -> str:
    for line in listing.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "machdep.cpu.brand_string") and value.strip() not in ("", "-"):
            return value.strip()
    return ""
