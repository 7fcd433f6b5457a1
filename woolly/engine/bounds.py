"""Bounds: the least time that the steps of a model need on a machine, by its memory and by its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from woolly.engine.bench import StepCost
from woolly.engine.diagnosis import Limits
from woolly.engine.machine import mean_bits, mixture
from woolly.engine.probe import Probe
from woolly.gguf import GGMLType, GGUFFile
from woolly.plan import Step

__all__ = ["PARTS", "TARGET", "Bounds", "part_of", "target_bits"]

PARTS = ("qkv", "attention", "output", "gate, up", "down", "experts", "logits", "other")

# The smallest mixture that answers nearly as well as the original. Files that are as small are not asked to shrink.
TARGET = "Q4_K_M"
_SMALL = ("Q2", "Q3", "Q4", "IQ", "MXFP4", "TQ")
# What it makes of a matrix whose columns fill blocks of 256, and of others: types, and bits with those parts of
# attn_v and ffn_down that it keeps larger. Logits keep six bits or eight.
_TARGET_TYPES = {256: (GGMLType.Q4_K, 4.85), 32: (GGMLType.Q5_0, 5.5)}
_TARGET_LOGITS = {256: (GGMLType.Q6_K, 6.5625), 32: (GGMLType.Q8_0, 8.5)}
# Attention computes in f32, at once for the query heads that share a K and V, and for many tokens of a prompt.
_FLOAT_ROWS, _FLOAT_ROWS_MOST, _FLOAT_COLUMNS = 4, 128, 512


@dataclass(frozen=True)
class Bounds:
    """Memory and kernels that bound a model, as its weights are or as a smaller mixture has them."""

    bandwidth: float  # bytes per second
    probe: Probe
    smaller: bool = False

    def float_rate(self, n_tokens: int) -> float:
        """Products per second of f32 for so many tokens of one sequence at once."""
        rows = min(_FLOAT_ROWS_MOST, _FLOAT_ROWS * n_tokens)
        return self.probe.linear_rate(GGMLType.F32, _FLOAT_COLUMNS, rows)

    def limits(self, costs: Sequence[StepCost], n_rows: int, n_runs: int, n_tokens: int = 1) -> Limits:
        """Of steps of one kind, per run, which computes so many rows at once and so many tokens of each sequence."""
        n_bytes, arithmetic = 0.0, 0.0
        for cost in costs:
            if cost.step.op == "attend":
                n_bytes += cost.n_bytes
                arithmetic += cost.macs / self.float_rate(n_tokens)
            elif cost.step.matrices:
                rows = min(n_rows, max(1, cost.n_rows // n_runs))
                for weight in cost.step.matrices:
                    n, columns, share = math.prod(weight.shape), weight.shape[-1], cost.step.used_share(weight)
                    type, bits = weight.type, _bits(weight.type)
                    if self.smaller:
                        type, bits = _smaller(weight.name, weight.type, columns)
                    n_bytes += n * bits / 8 * self._reads(cost)
                    # Rows that go to one expert are computed together.
                    rate = self.probe.linear_rate(type, columns, max(1, round(rows * share)))
                    arithmetic += n * share * cost.n_rows / rate
        return Limits(n_bytes / n_runs / self.bandwidth, arithmetic / n_runs)

    def _reads(self, cost: StepCost) -> float:
        """How often a step reads its weights in all runs."""
        whole = sum(math.prod(w.shape[:-1]) * w.type.row_bytes(w.shape[-1]) for w in cost.step.matrices)
        # Of experts only a part may be read.
        return cost.n_bytes / whole if cost.step.op == "moe" else max(1.0, cost.n_bytes // whole)


def target_bits(file: GGUFFile) -> float:
    """Bits per weight of the smaller mixture; the file's own where it is small."""
    if mixture(file).startswith(_SMALL):
        return mean_bits(file)
    bits = n = 0.0
    for tensor in file.tensors.values():
        columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1
        bits += tensor.n_elements * _smaller(tensor.name, tensor.type, columns)[1]
        n += tensor.n_elements
    return bits / max(n, 1)


def _bits(type: GGMLType) -> float:
    return 8 * type.type_size / type.block_size


def _smaller(name: str, type: GGMLType, columns: int) -> tuple[GGMLType, float]:
    """Type and bits per weight that the smaller mixture has for a matrix; its own where these are no more."""
    block = 256 if columns % 256 == 0 else 32
    if columns % block or columns == 0:
        return type, _bits(type)
    is_logits = name in ("output.weight", "token_embd.weight")
    target, bits = (_TARGET_LOGITS if is_logits else _TARGET_TYPES)[block]
    return (target, bits) if bits < _bits(type) else (type, _bits(type))


def part_of(step: Step) -> str:
    """The part of a model that a step belongs to."""
    if step.op == "attend":
        return "attention"
    names = [weight.name.removesuffix(".weight") for weight in step.weights]
    if any("_exps" in name for name in names):
        return "experts"
    if step.op != "linears":
        return "other"
    name = step.by_role("weight")[0].name.removesuffix(".weight").rpartition(".")[2]
    known = {"attn_output": "output", "ffn_gate": "gate, up", "ffn_up": "gate, up", "ffn_down": "down"}
    if name.startswith("attn_") and name not in known:
        return "qkv"
    return known.get(name, "logits" if name in ("output", "token_embd") else "other")
