"""LoRA adapters with per-request scales."""

from __future__ import annotations

import math
import numbers
import os
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from woolly.errors import ModelError, RequestError, StoreError
from woolly.gguf import GGUFFile, Tensor, open_gguf, text_of
from woolly.plan import Plan, Weight
from woolly.store import resolve
from woolly.store.file_digest import digest_of

_PARTS = (".lora_a", ".lora_b")


@dataclass(frozen=True)
class Adapter:
    """An open LoRA file."""

    name: str
    file: GGUFFile
    alpha: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # matrices A and B, keyed by the name of the adapted tensor
    digest: bytes = b""  # digest of the file; pages computed with this adapter are not shared with other adapters

    def close(self) -> None:
        """Close the file."""
        self.file.close()


@dataclass(frozen=True)
class AdapterSet:
    """Numbered adapters of a program; a removed adapter is None until its number is reused."""

    adapters: tuple[Adapter | None, ...] = ()
    scales: tuple[float, ...] = ()  # default scales
    removed: frozenset[int] = frozenset()  # numbers that only running requests may use

    @classmethod
    def whole(cls, adapters: Sequence[Adapter]) -> AdapterSet:
        """Return a set with a default scale of 1 for each adapter."""
        return cls(tuple(adapters), (1.0,) * len(adapters))

    @property
    def names(self) -> tuple[str | None, ...]:
        """Adapter names by number."""
        return tuple(None if one is None or i in self.removed else one.name for i, one in enumerate(self.adapters))

    @property
    def digests(self) -> tuple[bytes, ...]:
        """Adapter digests by number; empty for a removed adapter."""
        return tuple(b"" if one is None else one.digest for one in self.adapters)

    def scales_of(self, wanted: Mapping[str | int, float] | None) -> tuple[float, ...]:
        """Return the scales of a request by adapter number; None selects the defaults."""
        return self.scales if wanted is None else scales_of(wanted, self.names)

    def salt_of(self, scales: Sequence[float]) -> bytes:
        """Return the cache salt. K and V depend on the adapters, so only requests with equal scales share pages."""
        parts = [array("d", [scale]).tobytes() + key for scale, key in zip(scales, self.digests, strict=True) if scale]
        return b"".join(parts)

    def knows(self, scales: Sequence[float], digests: Sequence[bytes]) -> bool:
        """True if this set has the adapters of a request under the same numbers and digests."""
        own = self.digests
        return all(
            not scale or (i < len(own) and own[i] == digest)
            for i, (scale, digest) in enumerate(zip(scales, digests, strict=True))
        )

    def fitted(self, scales: Sequence[float]) -> tuple[float, ...]:
        """Return the scales of a request created for another set, padded with 0 for adapters added since."""
        n = len(self.adapters)
        return (*scales[:n], *[0.0] * (n - len(scales)))

    def with_adapter(self, adapter: Adapter, scale: float) -> AdapterSet:
        """Return the set with another adapter, at the first free number."""
        at = self.adapters.index(None) if None in self.adapters else len(self.adapters)
        adapters = (*self.adapters[:at], adapter, *self.adapters[at + 1 :])
        return replace(self, adapters=adapters, scales=(*self.scales[:at], scale, *self.scales[at + 1 :]))

    def hiding(self, name: str) -> AdapterSet:
        """Return the set without an adapter for new requests; running requests keep it."""
        at = self.names.index(name)
        scales = (*self.scales[:at], 0.0, *self.scales[at + 1 :])
        return replace(self, scales=scales, removed=self.removed | {at})

    def pruned(self, used: Collection[int]) -> AdapterSet:
        """Return the set without unused removed adapters; the other numbers do not change."""
        kept = [None if i in self.removed and i not in used else one for i, one in enumerate(self.adapters)]
        while kept and kept[-1] is None:
            kept.pop()
        return AdapterSet(tuple(kept), self.scales[: len(kept)], self.removed & frozenset(used))


def named_adapters(adapters: object) -> dict[str, str | os.PathLike[str]]:
    """Return adapter files by name. Files in a list are named by their stems."""
    if adapters is None:
        return {}
    if isinstance(adapters, Mapping):
        return {str(name): path for name, path in adapters.items()}
    if isinstance(adapters, (str, os.PathLike)):
        adapters = [adapters]
    if not isinstance(adapters, Sequence):
        raise RequestError(f"adapters is {adapters!r}; expected files, or a mapping of names to files")
    named = {Path(path).stem: path for path in adapters}
    if len(named) < len(adapters):
        raise RequestError("two adapter files have the same name; pass a mapping of names to files", field="adapters")
    return named


def open_adapter(name: str, path: str | os.PathLike[str], plan: Plan) -> Adapter:
    """Open a LoRA file for a model.

    Raise ModelError if the architecture differs or tensors are unsupported, or StoreError if the file is missing.
    """
    try:
        found = resolve(path)
    except StoreError:
        raise StoreError(f"LoRA adapter {os.fspath(path)!r} not found; pass the path of its GGUF file") from None
    file = open_gguf(found)
    try:
        return _read(name, file, plan)
    except BaseException:
        file.close()
        raise


def _read(name: str, file: GGUFFile, plan: Plan) -> Adapter:
    keys = file.metadata
    if (text_of(keys, "general.type"), text_of(keys, "adapter.type")) != ("adapter", "lora"):
        raise ModelError(
            f"{file.path}: not a LoRA adapter (general.type or adapter.type differs); pass the GGUF file of an adapter"
        )
    if (other := text_of(keys, "general.architecture")) != plan.architecture:
        raise ModelError(f"{file.path}: the adapter is for {other!r:.60}, but the model is {plan.architecture!r}")
    if "adapter.alora.invocation_tokens" in keys:
        raise ModelError(f"{file.path}: adapters that start at invocation tokens (aLoRA) are not supported")
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for tensor in file.tensors.values():
        base, part = tensor.name[:-7], tensor.name[-7:]
        if part not in _PARTS:
            raise ModelError(f"{file.path}: unsupported tensor {tensor.name!r}; expected pairs .lora_a, .lora_b")
        if len(tensor.shape) not in (2, 3):
            raise ModelError(f"{file.path}: {tensor.name!r} has {len(tensor.shape)} dimensions; expected 2 or 3")
        a, b = (file.tensors.get(base + other) for other in _PARTS)
        if a is None or b is None:
            raise ModelError(f"{file.path}: {tensor.name!r} has no counterpart (.lora_a and .lora_b are a pair)")
        if len(a.shape) != len(b.shape) or a.shape[:-2] != b.shape[:-2]:
            raise ModelError(f"{file.path}: .lora_a and .lora_b of {base!r} belong to different experts")
        if a.shape[-2] != b.shape[-1]:
            raise ModelError(f"{file.path}: .lora_a and .lora_b of {base!r} have ranks {a.shape[-2]} and {b.shape[-1]}")
        pairs[base] = a, b
    alpha = keys.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise ModelError(f"{file.path}: adapter.lora.alpha is {alpha!r:.60}; expected a number")
    return Adapter(name, file, float(alpha), pairs, bytes.fromhex(digest_of(file.paths)))


def adapted(plan: Plan, adapters: Sequence[Adapter | None]) -> tuple[Plan, dict[str, Tensor]]:
    """Return the plan with the adapters' steps, and the adapters' tensors by name."""
    shapes = {w.tensor: _whole(plan, w) for step in plan.steps if step.op == "linear" for w in step.weights[:1]}
    tensors: dict[str, Tensor] = {}
    from woolly.plan.passes.lora import LowRank, apply_lora

    known: list[dict[str, LowRank]] = []
    for index, adapter in enumerate(adapters):
        low: dict[str, LowRank] = {}
        if adapter is None:
            known.append(low)
            continue
        for base, (a, b) in adapter.pairs.items():
            names = [f"{base}{part}.{index}" for part in _PARTS]
            tensors |= zip(names, (a, b), strict=True)
            if base in shapes and (len(a.shape) != 2 or a.shape[1] != shapes[base][1] or b.shape[0] < shapes[base][0]):
                raise ModelError(f"{adapter.file.path}: the shape of {base!r} does not match the model's tensor")
            factor = adapter.alpha / a.shape[-2] if adapter.alpha else 1.0
            low[base] = LowRank(
                Weight(names[0], a.type, tuple(a.shape)), Weight(names[1], b.type, tuple(b.shape)), factor
            )
        known.append(low)
        try:
            apply_lora(plan, [low])
        except ModelError as error:
            raise ModelError(f"{adapter.file.path}: {error}") from None
    return apply_lora(plan, known), tensors


def _whole(plan: Plan, weight: Weight) -> tuple[int, int]:
    """Return how many rows of a tensor the steps read, and the number of its columns."""
    ends = [w.name.rpartition(":")[2].rstrip("]") for w in plan.weights.values() if w.tensor == weight.tensor]
    rows = max(int(end) if end.isdigit() else weight.shape[0] for end in ends)
    return rows, weight.shape[1]


def scaled_file(text: str, field: str = "lora_scaled") -> tuple[str, float]:
    """Parse `FILE:SCALE`, the syntax of llama.cpp's --lora-scaled."""
    file, _, number = text.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not file or not math.isfinite(scale):
        raise RequestError(f"{field} is {text!r}; expected FILE:SCALE, such as french.gguf:0.5", field=field)
    return file, scale


def scales_of(wanted: Mapping[str | int, float] | None, names: Sequence[str | None]) -> tuple[float, ...]:
    """Return the scale of each adapter.

    None selects 1 for all, like llama-server's `--lora`; unnamed adapters get 0.
    """
    if wanted is None:
        return (1.0,) * len(names)
    if not isinstance(wanted, Mapping):
        raise RequestError(f"adapters is {wanted!r}; expected a mapping of names to scales", field="adapters")
    scales = [0.0] * len(names)
    for key, scale in wanted.items():
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not math.isfinite(scale):
            raise RequestError(f"the scale of adapter {key!r} is {scale!r}; expected a number", field="adapters")
        if key in names:
            scales[names.index(str(key))] = float(scale)
        elif type(key) is int and 0 <= key < len(names) and names[key] is not None:
            scales[key] = float(scale)
        else:
            known = [name for name in names if name is not None]
            have = f"expected one of {', '.join(known)}" if known else "no adapter was loaded (see --lora)"
            raise RequestError(f"unknown adapter {key!r}; {have}", field="adapters")
    return tuple(scales)
