"""Options: how a backend compiles a plan. Values out of range raise RequestError."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from woolly.errors import RequestError
from woolly.runtime.devices import parse_devices


@dataclass(frozen=True)
class KvType:
    """Data type of K and V in the cache."""

    bits: float  # per element, including its share of a scale
    block: int = 1  # elements that share a scale


KV_TYPES = {
    "f16": KvType(16),
    "f32": KvType(32),
    "q8_0": KvType(9, block=32),
    "q4": KvType(4.5, block=32),
}
# Types with kernels, by GPU backend; other backends support all types and pairs.
_ON_GPUS = {"cuda": ("f16", "f32", "q8_0", "q4", "q8_0/q4", "f16/q4")}
_ALL = (*KV_TYPES, *(f"{k}/{v}" for k in KV_TYPES for v in KV_TYPES if k != v))

# Default maximum rows of a batch.
USUAL_ROWS = 512

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True)
class Options:
    """Settings of one program."""

    threads: int | None = None  # None: the physical cores available to the process
    weight_memory: int | None = None  # maximum bytes of prepared weights in memory; None: no limit
    kv_type: str | None = None  # type of the KV cache; None: the backend decides
    level: str | None = None  # kernel level, one of Backend.levels; None: the fastest
    max_rows: int | None = None  # maximum rows of a batch; None: the backend decides
    device: str | None = None  # syntax of `parse_devices`; None: the backend's first device
    # Layers on GPUs: a number, "all", or "auto" for the number that fits. None: "auto" if the backend is "auto", else
    # "all".
    gpu_layers: int | str | None = None
    n_cpu_moe: int | str | None = None  # layers, from the first, whose experts stay on the CPU, or "all"
    # Expected cache size, reserved when layers are placed on GPUs.
    cache_tokens: int | None = None
    cache_slots: int = 0
    max_running: int = 16  # concurrent requests, each with a KV window

    def __post_init__(self) -> None:
        most = 4 * (os.cpu_count() or 1)
        if self.threads is not None and (not _whole(self.threads, 1) or self.threads > most):
            raise RequestError(
                f"threads is {self.threads!r}; expected an integer from 1 to {most} here",
                field="threads",
                limit=most,
            )
        if self.weight_memory is not None and not _whole(self.weight_memory, 0):
            raise RequestError(
                f"weight_memory is {self.weight_memory!r}; expected at least 0 bytes", field="weight_memory"
            )
        if self.kv_type is not None:
            check_kv_type(self.kv_type)
            k, _, v = self.kv_type.partition("/")
            if k == v:  # canonical name: identities include it, and GPUs accept no pair
                object.__setattr__(self, "kv_type", k)
        parse_devices(self.device)
        object.__setattr__(self, "gpu_layers", parse_layers(self.gpu_layers))
        object.__setattr__(self, "n_cpu_moe", parse_cpu_moe(self.n_cpu_moe))

    @property
    def wants_gpu(self) -> bool:
        """True if some layers must be on a GPU."""
        return self.gpu_layers == "all" or (isinstance(self.gpu_layers, int) and self.gpu_layers > 0)

    def reject_gpu_layers(self, backend: str) -> None:
        """Raise RequestError if layers are requested on GPUs, for backends without GPUs."""
        if self.wants_gpu:
            raise RequestError(
                f"gpu_layers is {self.gpu_layers}, but backend {backend} has no GPU; leave it out, or use"
                " backend='cuda'",
                field="gpu_layers",
            )

    def for_cache(self, n_tokens: int | None, max_running: int) -> Options:
        """Return the options with the expected cache size; None: unknown."""
        return replace(self, cache_tokens=n_tokens, max_running=max_running)

    def rows(self, usual: int = USUAL_ROWS) -> int:
        """Return the maximum number of rows in a batch; the default is `usual`."""
        return usual if self.max_rows is None else self.max_rows


def kv_types_of(gpu: str) -> tuple[str, ...]:
    """Return the cache types that a GPU backend has kernels for, including pairs."""
    return _ON_GPUS.get(gpu, _ALL)


def kv_type_pair(kv_type: str) -> tuple[str, str]:
    """Return the types of K and V."""
    k, _, v = kv_type.partition("/")
    return k, v or k


def check_kv_type(kv_type: str, field: str = "kv_type", gpu: str = "") -> None:
    """Raise RequestError unless it is a cache type, or a pair such as "q8_0/q4": K, then V.

    If `gpu` names a GPU backend, it must support the type.
    """
    parts = kv_type.split("/")
    if len(parts) > 2 or any(part not in KV_TYPES for part in parts):
        named = "; q4_0 is llama.cpp's name, and q4 the one here" if "q4_0" in parts else ""
        raise RequestError(
            f"{field} is {kv_type!r}; choose one of: {', '.join(KV_TYPES)}, or two for K and V, as in q8_0/q4{named}",
            field=field,
        )
    if gpu and kv_type not in kv_types_of(gpu):
        others = ", ".join(kv_types_of(gpu))
        raise RequestError(
            f"{field} is {kv_type!r}, which the {gpu} backend has no kernels for; choose one of: {others}", field=field
        )


def join_kv_types(keys: str | None, values: str | None, fields: tuple[str, str]) -> str | None:
    """Return the `kv_type` for separate types of keys and values, set in these fields, or None if both are None.

    Raises RequestError if `values` is not a type, or if `keys` names both.
    """
    if values is None:
        return keys
    if values not in KV_TYPES:
        named = "; q4_0 is llama.cpp's name, and q4 the one here" if values == "q4_0" else ""
        raise RequestError(
            f"{fields[1]} is {values!r}; choose one of: {', '.join(KV_TYPES)}{named}", field=fields[1], names=fields[1:]
        )
    if "/" in (keys or ""):
        raise RequestError(
            f"{fields[0]} is {keys}, which names both types; leave {fields[1]} out", field=fields[1], names=fields
        )
    return values if values == (keys or "f16") else f"{keys or 'f16'}/{values}"


def parse_layers(layers: int | str | None) -> int | str | None:
    """Parse `gpu_layers`: a number, or a string such as "23", "auto" or "all"."""
    text = layers.strip().lower() if isinstance(layers, str) else ""
    if layers is None or text in ("auto", "all"):
        return text or None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if not _whole(layers, 0):
        raise RequestError(
            f"gpu_layers is {layers!r}; expected auto, all or an integer of at least 0", field="gpu_layers"
        )
    return layers


def parse_cpu_moe(layers: int | str | None) -> int | str | None:
    """Parse `n_cpu_moe`: a number, or a string such as "23" or "all"."""
    text = layers.strip().lower() if isinstance(layers, str) else ""
    if layers is None or text == "all":
        return text or None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if not _whole(layers, 0):
        raise RequestError(f"n_cpu_moe is {layers!r}; expected all or an integer of at least 0", field="n_cpu_moe")
    return layers


def parse_max_running(name: str, value: int | str | None) -> int | None:
    """Parse the maximum number of running requests, such as 64 or "64". Return None for "auto"."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if value is None or text == "auto":
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        value = int(text)
    if not isinstance(value, int) or not _whole(value, 1):
        raise RequestError(f"{name} is {value}; expected at least 1, or auto", field=name)
    return value


def _whole(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def parse_size(name: str, size: int | str | None) -> int | None:
    """Parse a size in bytes: a number, or a string such as 600MB or 1.5GiB."""
    if size is None or (isinstance(size, int) and not isinstance(size, bool)):
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", size.lower()) if isinstance(size, str) else None
    if found is None:
        raise RequestError(f"{name} is {size!r}; expected bytes, such as 600000000, 600MB or 1.5GiB", field=name)
    return int(float(found[1]) * _UNITS[found[2] or ""])
