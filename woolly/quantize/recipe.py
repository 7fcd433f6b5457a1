"""Recipe: the type of each tensor of a quantized file.

Mixes follow llama.cpp's rules, so a mix name means the same everywhere: which tensors get more bits, and which type
replaces the first one if rows are not a multiple of its block size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from woolly.errors import RequestError
from woolly.gguf import ModelDescription, Tensor
from woolly.quant import GGMLType, can_dequantize
from woolly.quantize.low_bit_mixes import NEEDS_IMATRIX, WeightPosition, low_bit_type
from woolly.quantize.mixes import Mix

# Fallback types for rows that are not a multiple of the first type's block size.
_STAND_IN = {
    GGMLType.Q2_K: GGMLType.Q4_0,
    GGMLType.Q3_K: GGMLType.Q4_0,
    GGMLType.Q4_K: GGMLType.Q5_0,
    GGMLType.Q5_K: GGMLType.Q5_1,
    GGMLType.Q6_K: GGMLType.Q8_0,
    GGMLType.IQ4_XS: GGMLType.IQ4_NL,
    **dict.fromkeys((GGMLType.IQ3_S, GGMLType.IQ3_XXS, GGMLType.IQ2_S, GGMLType.IQ2_XS), GGMLType.IQ4_NL),
    **dict.fromkeys((GGMLType.IQ2_XXS, GGMLType.IQ1_S, GGMLType.IQ1_M), GGMLType.IQ4_NL),
    **dict.fromkeys((GGMLType.TQ1_0, GGMLType.TQ2_0), GGMLType.Q4_0),
    GGMLType.NVFP4: GGMLType.MXFP4,
}
_PLAIN = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
# Small weights, or weights with a large effect on the output, which are not quantized.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj|position_embd"
    r"|token_types|ssm_conv1d|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight|attn_rel_b\.weight"
    r"|hc_(attn|ffn)_fn|output_hc_fn|_compressor_ape"
    r"|time_mix_(first|[wvag][012]|decay_w[12]|lerp_fused)\.weight"
    r"|sam\.(pos_embd|neck\.|net_)|\.rel_pos|\.patch_embd|\.patch_merger|a\.rvq\.codebook|mm\.a\.code_embd"
)
_LAYER = re.compile(r"blk\.([0-9]+)\.")


@dataclass(frozen=True)
class Change:
    """Tensor and its new type."""

    tensor: Tensor
    type: GGMLType

    @property
    def n_bytes(self) -> int:
        """Size of the tensor in the new type."""
        return self.tensor.n_elements // self.type.block_size * self.type.type_size

    @property
    def is_change(self) -> bool:
        """True if the new type differs from the type in the file."""
        return self.type is not self.tensor.type

    @property
    def is_loss_free(self) -> bool:
        """True if the type stores the tensor without loss."""
        holds = {GGMLType.F16: (GGMLType.F32,), GGMLType.BF16: (GGMLType.F32,)}.get(self.tensor.type, ())
        return not self.is_change or self.type in holds


@dataclass(frozen=True)
class Recipe:
    """Type of each tensor, in file order."""

    mix: Mix
    changes: tuple[Change, ...]

    @property
    def n_bytes_before(self) -> int:
        """Size of all tensors in the file."""
        return sum(change.tensor.n_bytes for change in self.changes)

    @property
    def n_bytes(self) -> int:
        """Size of all tensors in the new types."""
        return sum(change.n_bytes for change in self.changes)

    @property
    def is_loss_free(self) -> bool:
        """True if no tensor loses precision."""
        return all(change.is_loss_free for change in self.changes)

    @property
    def n_misfits(self) -> int:
        """Number of weights with a fallback type, because their rows are not a multiple of the block size."""
        block = self.mix.type.block_size
        return sum(bool(c.tensor.shape[-1] % block) for c in self.changes if is_weight(c.tensor))

    @property
    def bits_per_weight(self) -> float:
        """Mean bits per weight in the new types."""
        return 8 * self.n_bytes / max(1, sum(change.tensor.n_elements for change in self.changes))


def make_recipe(
    file: ModelDescription,
    mix: Mix,
    *,
    pure: bool = False,
    output_type: GGMLType | None = None,
    embedding_type: GGMLType | None = None,
    tensor_types: Sequence[tuple[re.Pattern[str], GGMLType]] = (),
    allow_requantize: bool = False,
    has_imatrix: bool = False,
) -> Recipe:
    """Choose a type for every tensor.

    With `pure`, all weights get the mix's main type. `output_type` and `embedding_type` override the choice for these
    tensors; if they are tied, `embedding_type` wins. `tensor_types` have the highest priority: they apply to weights
    whose names match the expression, and the last match wins. RequestError if a weight is already quantized and its new
    type is not F32, unless `allow_requantize`, or if its type needs an imatrix and `has_imatrix` is not set.
    """
    rules = _Rules(file, mix, has_imatrix)
    changes = []
    for tensor in file.tensors.values():
        type = tensor.type
        if is_weight(tensor):
            given = None
            if tensor.name == "output.weight" or (rules.is_tied and _is_embedding(tensor.name)):
                given = output_type
            if _is_embedding(tensor.name) and embedding_type is not None:
                given = embedding_type
            given = next((one for name, one in reversed(tensor_types) if name.search(tensor.name)), given)
            if given is not None and tensor.shape[-1] % given.block_size:
                raise RequestError(
                    f"{tensor.name} cannot be {given.name}: its row length {tensor.shape[-1]} is not a multiple of"
                    f" {given.block_size}"
                )
            chosen = given if given is not None else mix.type if pure else rules.choose(tensor)  # F32 is 0
            type = _fitting(chosen, tensor)
        is_lossless = type in (tensor.type, GGMLType.F32)
        if not is_lossless and tensor.type not in _PLAIN and not allow_requantize:
            raise RequestError(
                f"this file is already quantized ({tensor.name} is {tensor.type.name}), and quantizing it again loses"
                " more precision; use a file in F32, F16 or BF16, or add --allow-requantize"
            )
        if type in NEEDS_IMATRIX and type is not tensor.type and not has_imatrix:
            raise RequestError(
                f"{tensor.name} would be {type.name}, which needs an imatrix: create one from a text with woolly"
                " imatrix, and pass it with --imatrix"
            )
        changes.append(Change(tensor, type))
    return Recipe(mix, tuple(changes))


def is_kept(name: str) -> bool:
    """Return True if a tensor with this name stays in F32."""
    return _KEPT.search(name) is not None


def is_weight(tensor: Tensor) -> bool:
    """Return True if mixes apply to this tensor: a matrix that is not kept in F32."""
    if len([size for size in tensor.shape if size > 1]) < 2 or not tensor.name.endswith("weight"):
        return False
    return can_dequantize(tensor.type) and not is_kept(tensor.name)


def _is_embedding(name: str) -> bool:
    return name in ("token_embd.weight", "per_layer_token_embd.weight")


def _fitting(type: GGMLType, tensor: Tensor) -> GGMLType:
    for candidate in (type, _STAND_IN.get(type, GGMLType.F16)):
        if tensor.shape[-1] % candidate.block_size == 0:
            return candidate
    return GGMLType.F16


def _largest(value: Any) -> int:
    """Return a metadata number (the maximum of a per-layer list), or 0 if it is missing or not a number."""
    values = value if isinstance(value, (list, tuple, np.ndarray)) else [value]
    numbers = [one for one in values if isinstance(one, (int, float, np.number)) and np.isfinite(one)]
    return int(max(numbers, default=0))


class _Rules:
    """Rules for tensors with more or fewer bits than the mix's main type."""

    def __init__(self, file: ModelDescription, mix: Mix, has_imatrix: bool) -> None:
        def number(key: str) -> int:
            return _largest(file.metadata.get(f"{architecture}.{key}"))

        architecture = file.metadata.get("general.architecture", "")
        self.mix = mix
        self.has_imatrix = has_imatrix
        self.is_tied = "output.weight" not in file.tensors
        self.n_layers = number("block_count")
        self.n_experts = number("expert_count")
        kv_heads = number("attention.head_count_kv") or number("attention.head_count") or 1
        self.heads_per_kv = number("attention.head_count") // kv_heads
        # With 80 layers and GQA, attn_v is small enough that more bits are nearly free.
        self.is_70b = architecture in ("llama", "qwen2") and self.n_layers == 80 and self.heads_per_kv > 1
        values = [name for name in file.tensors if self._is_values(name)]
        self.values = sorted(values, key=lambda name: self._layer(name))

    def choose(self, tensor: Tensor) -> GGMLType:
        """Return the type of a weight, without checking its shape."""
        name, mix, base = tensor.name, self.mix.name, self.mix.type
        if base in _PLAIN:
            return base
        place = WeightPosition(
            name,
            self._layer(name),
            self.n_layers,
            self.heads_per_kv,
            self.n_experts,
            is_values=self._is_values(name),
            is_output=name == "output.weight" or (self.is_tied and _is_embedding(name)),
            is_embedding=_is_embedding(name),
        )
        if (rule := low_bit_type(mix, base, place, self.has_imatrix)) is not None:
            return rule
        if name == "output.weight" or (self.is_tied and _is_embedding(name)):
            if tensor.shape[-1] % base.block_size or base is GGMLType.Q8_0:
                return GGMLType.Q8_0
            return GGMLType.Q6_K
        if self._is_values(name):
            return self._for_values(name)
        if "attn_k.weight" in name:
            return GGMLType.Q8_0 if self.n_experts == 8 else base
        if "ffn_down" in name:
            return self._for_down(self._layer(name))
        if "attn_output.weight" in name:
            if self.n_experts == 8:
                few = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M")
                return GGMLType.Q5_K if mix in few else base
            return {"Q2_K": GGMLType.Q3_K, "Q3_K_M": GGMLType.Q4_K, "Q3_K_L": GGMLType.Q5_K}.get(mix, base)
        return base

    def _for_values(self, name: str) -> GGMLType:
        mix, base = self.mix.name, self.mix.type
        index, count = self.values.index(name), len(self.values)
        if mix == "Q2_K":
            type = GGMLType.Q4_K if self.heads_per_kv >= 4 else GGMLType.Q3_K
        elif mix == "Q3_K_M":
            type = GGMLType.Q5_K if index < 2 else GGMLType.Q4_K
        elif mix == "Q3_K_L" or (mix in ("IQ4_NL", "IQ4_XS") and self.heads_per_kv >= 4):
            type = GGMLType.Q5_K
        elif mix in ("Q4_K_M", "Q5_K_M") and _more_bits(index, count):
            type = GGMLType.Q6_K
        elif mix == "Q4_K_S" and index < 4:
            type = GGMLType.Q5_K
        else:
            type = base
        if self.is_70b and type in (GGMLType.Q3_K, GGMLType.Q4_K):
            type = GGMLType.Q5_K
        return GGMLType.Q8_0 if self.n_experts == 8 else type

    def _for_down(self, layer: int) -> GGMLType:
        mix, base, n = self.mix.name, self.mix.type, self.n_layers
        if mix == "Q2_K":
            return GGMLType.Q3_K
        if mix == "Q3_K_M":
            return GGMLType.Q5_K if layer < n // 16 else GGMLType.Q4_K
        if mix == "Q3_K_L":
            return GGMLType.Q5_K
        if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, n):
            return GGMLType.Q6_K
        if mix in ("Q4_K_S", "IQ4_NL", "IQ4_XS") and layer < n // 8:
            return GGMLType.Q5_K
        return base

    @staticmethod
    def _is_values(name: str) -> bool:
        return any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"))

    @staticmethod
    def _layer(name: str) -> int:
        found = _LAYER.match(name)
        return int(found[1]) if found else 0


def _more_bits(index: int, count: int) -> bool:
    """True in the first and last eighth of the layers, and for every third layer in between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2
