"""Minimum time of a model's steps on a machine, by memory and by arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from woolly.gguf import GGUFFile
from woolly.measure.bench import StepCost
from woolly.measure.diagnosis import Limits
from woolly.measure.kernel_probe import Probe
from woolly.quant import GGMLType
from woolly.quantize.describe import mean_bits, mixture

PARTS = ("qkv", "attention", "recurrence", "output", "gate, up", "down", "experts", "logits", "other")

# Smallest quantization with nearly the original quality. For smaller files, there is no advice to shrink.
TARGET = "Q4_K_M"
_SMALL = ("Q2", "Q3", "Q4", "IQ", "MXFP4", "NVFP4", "TQ")
# Types and mean bits of this quantization, for columns in blocks of 256 and for other columns. The mean includes layers
# of attn_v and ffn_down with more bits. The output matrix has 6 or 8 bits.
_TARGET_TYPES = {256: (GGMLType.Q4_K, 4.85), 32: (GGMLType.Q5_0, 5.5)}
_TARGET_LOGITS = {256: (GGMLType.Q6_K, 6.5625), 32: (GGMLType.Q8_0, 8.5)}
# Attention computes in f32, batched over the query heads of a KV head and over prompt tokens.
_FLOAT_ROWS, _MAX_FLOAT_ROWS, _FLOAT_COLUMNS = 4, 128, 512


@dataclass(frozen=True)
class Bounds:
    """Memory and kernel limits for the original weights or a smaller quantization."""

    bandwidth: float  # bytes per second
    probe: Probe
    smaller: bool = False

    def float_rate(self, n_tokens: int) -> float:
        """Return multiply-adds per second in f32 for a batch of n tokens of one sequence."""
        rows = min(_MAX_FLOAT_ROWS, _FLOAT_ROWS * n_tokens)
        return self.probe.linear_rate(GGMLType.F32, _FLOAT_COLUMNS, rows)

    def limits(self, costs: Sequence[StepCost], n_rows: int, n_runs: int, n_tokens: int = 1) -> Limits:
        """Return the limits of steps of one kind per run of n rows, with `n_tokens` per sequence."""
        n_bytes, arithmetic = 0.0, 0.0
        for cost in costs:
            if cost.step.kind.reads:
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
                    # An expert computes all its rows in one batch.
                    rate = self.probe.linear_rate(type, columns, max(1, round(rows * share)))
                    arithmetic += n * share * cost.n_rows / rate
        return Limits(n_bytes / n_runs / self.bandwidth, arithmetic / n_runs)

    def _reads(self, cost: StepCost) -> float:
        """Return how often a step reads its weights in all runs."""
        whole = sum(weight.n_bytes for weight in cost.step.matrices)
        # A step may read only some experts.
        return (
            cost.n_bytes / whole
            if any(len(w.shape) == 3 for w in cost.step.matrices)
            else max(1.0, cost.n_bytes // whole)
        )


def target_bits(file: GGUFFile) -> float:
    """Return the bits per weight of the smaller quantization, or of the file if it has fewer."""
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
    """Return type and bits per weight of a matrix in the smaller quantization, or the original if it is smaller."""
    block = 256 if columns % 256 == 0 else 32
    if columns % block or columns == 0:
        return type, _bits(type)
    is_logits = name in ("output.weight", "token_embd.weight")
    target, bits = (_TARGET_LOGITS if is_logits else _TARGET_TYPES)[block]
    return (target, bits) if bits < _bits(type) else (type, _bits(type))
