"""Adapters: LoRA files, opened beside a model; each request says how much of each it wants."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from woolly.errors import ModelError, RequestError, StoreError
from woolly.gguf import GGUFFile, Tensor, open_gguf, text_of
from woolly.plan import Plan, Weight
from woolly.plan.passes.adapt import LowRank, adapt
from woolly.store import resolve

__all__ = ["Adapter", "adapted", "named_adapters", "open_adapter", "scaled_file", "scales_of"]

_PARTS = (".lora_a", ".lora_b")


@dataclass(frozen=True)
class Adapter:
    """A LoRA file that is open."""

    name: str
    file: GGUFFile
    alpha: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # a and b, by the tensor that they add to

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


def named_adapters(adapters: object) -> dict[str, str | os.PathLike[str]]:
    """Files by name: those of a mapping, or of a list, named after their files."""
    if adapters is None:
        return {}
    if isinstance(adapters, Mapping):
        return {str(name): path for name, path in adapters.items()}
    if isinstance(adapters, (str, os.PathLike)):
        adapters = [adapters]
    if not isinstance(adapters, Sequence):
        raise RequestError(f"adapters is {adapters!r}; files, or a mapping of names to files, were expected")
    named = {Path(path).stem: path for path in adapters}
    if len(named) < len(adapters):
        raise RequestError("two adapters have files of one name; give a mapping of names to files", field="adapters")
    return named


def open_adapter(name: str, path: str | os.PathLike[str], plan: Plan) -> Adapter:
    """Opens a LoRA file for a model; ModelError for one of another architecture, or with what is not supported.

    StoreError if there is no such file.
    """
    try:
        found = resolve(path)
    except StoreError:
        raise StoreError(f"there is no LoRA adapter {os.fspath(path)!r}: give the path of its GGUF file") from None
    file = open_gguf(found)
    try:
        return _read(name, file, plan)
    except BaseException:
        file.close()
        raise


def _read(name: str, file: GGUFFile, plan: Plan) -> Adapter:
    keys = file.metadata
    if (text_of(keys, "general.type"), text_of(keys, "adapter.type")) != ("adapter", "lora"):
        raise ModelError(f"{file.path}: this is not a LoRA adapter (general.type and adapter.type say so)")
    if (other := text_of(keys, "general.architecture")) != plan.architecture:
        raise ModelError(f"{file.path}: the adapter is for {other!r:.60}, but the model is {plan.architecture!r}")
    if "adapter.alora.invocation_tokens" in keys:
        raise ModelError(f"{file.path}: adapters that start at invocation tokens (aLoRA) are not supported")
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for tensor in file.tensors.values():
        base, part = tensor.name[:-7], tensor.name[-7:]
        if part not in _PARTS:
            raise ModelError(f"{file.path}: the adapter changes {tensor.name!r}; only pairs .lora_a, .lora_b are known")
        if len(tensor.shape) != 2:
            raise ModelError(f"{file.path}: {tensor.name!r} is of experts, which adapters cannot change here")
        a, b = (file.tensors.get(base + other) for other in _PARTS)
        if a is None or b is None:
            raise ModelError(f"{file.path}: {tensor.name!r} has no other half")
        if a.shape[0] != b.shape[1]:
            raise ModelError(f"{file.path}: the halves of {base!r} have ranks of {a.shape[0]} and {b.shape[1]}")
        pairs[base] = a, b
    alpha = keys.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise ModelError(f"{file.path}: adapter.lora.alpha is {alpha!r:.60}; a number was expected")
    return Adapter(name, file, float(alpha), pairs)


def adapted(plan: Plan, adapters: Sequence[Adapter]) -> tuple[Plan, dict[str, Tensor]]:
    """The plan with the adapters' steps, and their tensors by the names that these steps have for them."""
    shapes = {w.tensor: _whole(plan, w) for step in plan.steps if step.op == "linear" for w in step.weights[:1]}
    tensors: dict[str, Tensor] = {}
    known: list[dict[str, LowRank]] = []
    for index, adapter in enumerate(adapters):
        low: dict[str, LowRank] = {}
        for base, (a, b) in adapter.pairs.items():
            names = [f"{base}{part}.{index}" for part in _PARTS]
            tensors |= zip(names, (a, b), strict=True)
            if base in shapes and (a.shape[1] != shapes[base][1] or b.shape[0] < shapes[base][0]):
                raise ModelError(f"{adapter.file.path}: {base!r} has other rows or columns than the model's")
            factor = adapter.alpha / a.shape[0] if adapter.alpha else 1.0
            low[base] = LowRank(
                Weight(names[0], a.type, tuple(a.shape)), Weight(names[1], b.type, tuple(b.shape)), factor
            )
        known.append(low)
        try:
            adapt(plan, [low])
        except ModelError as error:
            raise ModelError(f"{adapter.file.path}: {error}") from None
    return adapt(plan, known), tensors


def _whole(plan: Plan, weight: Weight) -> tuple[int, int]:
    """The last row that some step reads of a weight's tensor, and its columns."""
    ends = [w.name.rpartition(":")[2].rstrip("]") for w in plan.weights.values() if w.tensor == weight.tensor]
    rows = max(int(end) if end.isdigit() else weight.shape[0] for end in ends)
    return rows, weight.shape[1]


def scaled_file(text: str, field: str = "lora_scaled") -> tuple[str, float]:
    """Returns the file and the scale of `FILE:SCALE`, as llama.cpp's --lora-scaled takes them."""
    file, _, number = text.rpartition(":")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not file or not math.isfinite(scale):
        raise RequestError(
            f"{field} is {text!r}; a file and its scale were expected, such as french.gguf:0.5", field=field
        )
    return file, scale


def scales_of(wanted: Mapping[str | int, float] | None, names: Sequence[str]) -> tuple[float, ...]:
    """The scale of each adapter; None: 1 for all, as llama-server's `--lora` does; those not named: 0."""
    if wanted is None:
        return (1.0,) * len(names)
    if not isinstance(wanted, Mapping):
        raise RequestError(f"adapters is {wanted!r}; scales by name were expected", field="adapters")
    scales = [0.0] * len(names)
    for key, scale in wanted.items():
        if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not math.isfinite(scale):
            raise RequestError(f"the scale of adapter {key!r} is {scale!r}; a number was expected", field="adapters")
        if key in names:
            scales[names.index(str(key))] = float(scale)
        elif isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names):
            scales[key] = float(scale)
        else:
            have = f"there are {', '.join(names)}" if names else "none was opened with the model (--lora)"
            raise RequestError(f"there is no adapter {key!r}; {have}", field="adapters")
    return tuple(scales)
