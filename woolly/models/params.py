"""Metadata -> frozen parameters. A missing or wrong key is one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.errors import ModelError, UnsupportedError
from woolly.plan import Rope
from woolly.plan.rope import RopeStyle

__all__ = ["Keys", "TransformerParams", "read_rope", "read_transformer"]

# Keys whose presence changes the arithmetic in ways that no model here knows; silence would mean wrong logits.
_REFUSED = (
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.sliding_window_pattern",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "leading_dense_block_count",
)
# The same, but for models that have them.
_SCALARS = ("embedding_scale", "residual_scale", "logit_scale")


class Keys:
    """Typed access to the `{architecture}.*` keys of a file."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self.architecture = architecture

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; required where there is no default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number", value)
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.integer(name, default)
        if value <= 0:
            raise self._wrong(name, "a positive whole number", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Any finite number; required where there is no default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, "a number", value)
        if value != value or value in (float("inf"), float("-inf")):
            raise self._wrong(name, "a finite number", value)
        return float(value)

    def string(self, name: str, default: str | None = None) -> str:
        """Text; required where there is no default."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def has(self, name: str) -> bool:
        """Whether the file gives this key."""
        return f"{self.architecture}.{name}" in self._metadata

    def is_set(self, name: str) -> bool:
        """Whether the file gives this key, and not as zero or false."""
        value = self._metadata.get(f"{self.architecture}.{name}")
        return value is not None and not (isinstance(value, (bool, int, float)) and value == 0)

    def _get(self, name: str, default: object) -> object:
        key = f"{self.architecture}.{name}"
        if key in self._metadata:
            return self._metadata[key]
        if default is None:
            raise ModelError(f"metadata key {key} is missing, which the {self.architecture} model needs")
        return default

    def _wrong(self, name: str, expected: str, value: object) -> ModelError:
        found = repr(value) if isinstance(value, (bool, int, float, str)) else "an array"
        return ModelError(f"metadata key {self.architecture}.{name} is {found}, but {expected} was expected")


@dataclass(frozen=True)
class TransformerParams:
    """What decoder-only transformers have in common."""

    n_layers: int
    width: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    scale: float  # of attention scores
    window: int  # positions that attention sees, 0 for all
    rope: Rope


def read_transformer(keys: Keys, style: RopeStyle, *, scalars: bool = False) -> TransformerParams:
    """The common parameters, checked against each other. `scalars`: the model reads its scales itself."""
    for name in _REFUSED + (() if scalars else _SCALARS):
        if keys.is_set(name):
            raise UnsupportedError(
                f"metadata key {keys.architecture}.{name} is set, which Woolly's {keys.architecture} model"
                " does not support yet"
            )
    if not keys.flag("attention.causal", True):
        raise UnsupportedError(f"{keys.architecture} models whose attention is not causal are not supported yet")
    n_heads = keys.positive("attention.head_count")
    n_kv_heads = keys.positive("attention.head_count_kv", n_heads)
    width = keys.positive("embedding_length")
    if n_heads % n_kv_heads != 0:
        raise ModelError(f"{n_heads} attention heads cannot share {n_kv_heads} key-value heads evenly")
    if width % n_heads != 0 and not keys.has("attention.key_length"):
        raise ModelError(f"an embedding of {width} cannot be split into {n_heads} heads evenly")
    head_dim = keys.positive("attention.key_length", width // n_heads)
    if keys.positive("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError("heads whose values are longer or shorter than their keys are not supported yet")
    eps = keys.number("attention.layer_norm_rms_epsilon")
    window = keys.integer("attention.sliding_window", 0)
    if eps < 0 or window < 0:
        raise ModelError(f"the norms' epsilon is {eps:g} and the attention window {window}; neither may be negative")
    return TransformerParams(
        n_layers=keys.positive("block_count"),
        width=width,
        ffn=keys.positive("feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        eps=eps,
        scale=keys.number("attention.scale", 0.0) or head_dim**-0.5,
        window=window,
        rope=read_rope(keys, head_dim, style),
    )


def read_rope(keys: Keys, head_dim: int, style: RopeStyle) -> Rope:
    """Rotary embedding with the file's scaling: none, linear or yarn."""
    scaling = keys.string("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn"):
        raise UnsupportedError(f"rope scaling {scaling!r} is not supported yet; supported are none, linear and yarn")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0
    base = keys.number("rope.freq_base", 10000.0)
    if factor <= 0 or base <= 1:
        raise ModelError(f"rope needs a positive factor and a base above 1; the file gives {factor:g} and {base:g}")
    beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0)
    if beta_fast <= 0 or beta_slow <= 0:
        raise ModelError(f"yarn's betas are {beta_fast:g} and {beta_slow:g}; both must be positive")
    return Rope(
        head_dim=head_dim,
        n_rot=keys.positive("rope.dimension_count", head_dim),
        base=base,
        style=style,
        factor=1.0 if scaling == "none" else factor,
        yarn=scaling == "yarn",
        extrapolation=keys.number("rope.scaling.yarn_ext_factor", 1.0),
        magnitude=keys.number("rope.scaling.attn_factor", 1.0) * keys.number("rope.scaling.yarn_attn_factor", 1.0),
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        original_context=keys.positive("rope.scaling.original_context_length", keys.positive("context_length")),
    )
