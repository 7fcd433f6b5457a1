"""Tensors with more bits in mixes below three bits, as in published GGUF files with the same mix names."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.quant import GGMLType

# Types that need an importance matrix. Without it, the model is unusable.
NEEDS_IMATRIX = frozenset(
    {GGMLType.IQ2_XXS, GGMLType.IQ2_XS, GGMLType.IQ2_S, GGMLType.IQ1_S, GGMLType.IQ1_M},
)
_TWO = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
_THREE = ("IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M")


@dataclass(frozen=True)
class WeightPosition:
    """Position of a weight in the model."""

    name: str
    layer: int
    n_layers: int
    heads_per_kv: int
    n_experts: int
    is_values: bool
    is_output: bool
    is_embedding: bool  # True if the model has a separate output matrix


def low_bit_type(mix: str, base: GGMLType, at: WeightPosition, has_imatrix: bool) -> GGMLType | None:
    """Return the type of a weight in a mix below three bits or with MXFP4 experts. Return None for other mixes."""
    if mix == "MXFP4_MOE":
        return GGMLType.MXFP4 if "_exps." in at.name else GGMLType.Q8_0
    if mix in ("TQ1_0", "TQ2_0"):
        return GGMLType.Q6_K if at.is_output else GGMLType.Q4_K if at.is_embedding else base
    if mix in _TWO:
        return _two(mix, base, at)
    return _three(mix, base, at, has_imatrix) if mix in _THREE else None


def _two(mix: str, base: GGMLType, at: WeightPosition) -> GGMLType:
    is_larger = mix in ("IQ2_S", "IQ2_M")
    more = GGMLType.IQ3_S if is_larger else GGMLType.Q2_K
    if at.is_output:
        return GGMLType.Q5_K
    if at.is_embedding:
        return more
    if at.is_values:
        return GGMLType.Q4_K if at.heads_per_kv >= 4 or at.n_experts >= 4 else more
    if "attn_k.weight" in at.name and at.n_experts == 8:
        return GGMLType.Q4_K
    if "ffn_down" in at.name and at.layer < at.n_layers // 8:
        return more
    if "attn_output.weight" in at.name:
        if at.n_experts == 8:
            return GGMLType.Q5_K
        return GGMLType.IQ2_XXS if mix in ("IQ1_S", "IQ1_M") else GGMLType.IQ3_S if is_larger else base
    return base


def _three(mix: str, base: GGMLType, at: WeightPosition, has_imatrix: bool) -> GGMLType:
    if at.is_output:
        return GGMLType.Q5_K if mix == "IQ3_XXS" else GGMLType.Q6_K
    if at.is_embedding:
        return GGMLType.IQ3_S if mix == "IQ3_XXS" else base
    if at.is_values:
        if at.heads_per_kv >= 4 or mix == "IQ3_M":
            return GGMLType.Q4_K
        return GGMLType.IQ3_S if mix == "IQ3_XXS" and not has_imatrix else base
    if ("attn_k.weight" in at.name or "attn_q.weight" in at.name) and mix in ("IQ3_XXS", "IQ3_XS"):
        few = GGMLType.IQ2_S if has_imatrix else GGMLType.IQ3_XXS
        return few if mix == "IQ3_XXS" else GGMLType.IQ3_XXS
    if "ffn_down" in at.name:
        is_first = at.layer < at.n_layers // 8
        if mix == "IQ3_XXS" and not has_imatrix:
            return GGMLType.Q4_K if is_first else GGMLType.Q3_K
        return GGMLType.Q4_K if mix == "IQ3_M" and is_first else base
    if "attn_output.weight" in at.name:
        return {"IQ3_XXS": GGMLType.IQ3_S, "IQ3_M": GGMLType.Q4_K}.get(mix, base)
    if mix == "IQ3_XS" and ("ffn_gate" in at.name or "ffn_up" in at.name):
        is_inner = at.n_layers // 8 <= at.layer < 7 * at.n_layers // 8
        return GGMLType.IQ3_XXS if is_inner else base
    return base
