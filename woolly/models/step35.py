"""Step 3.5 and 3.7: gated heads, sliding windows with separate heads and rope, MoE with clamped gates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, Layer, TransformerParams, like_draft, read_experts, read_transformer
from woolly.plan import Handle, Tracer

_LIMITS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")


@dataclass(frozen=True)
class Step35Params:
    """Common parameters, and gate limits of routed and shared experts per layer."""

    common: TransformerParams
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]
    draft: int  # layer with the same shape as the MTP block


def read(keys: Keys) -> Step35Params:
    """Read the parameters. In global layers, rope covers half as many columns as in sliding-window layers."""
    base = keys.number("rope.freq_base", 10000.0)
    known = (*EXPERT_KEYS, *_LIMITS, "nextn_predict_layers")
    if not keys.has("attention.sliding_window_pattern"):
        raise ModelError(f"metadata key {keys.architecture}.attention.sliding_window_pattern is missing")
    hp = read_transformer(keys, "neox", knows=known, period=1, local_base=base)
    hp = replace(
        hp,
        layers=tuple(_half_rope(layer) for layer in hp.layers),
        experts=read_experts(keys, normalize=False, scoring="sigmoid"),
    )
    limits, shared_limits = (_limits(keys, name, hp.n_layers) for name in _LIMITS)
    return Step35Params(hp, limits, shared_limits, like_draft(keys, hp))


def _half_rope(layer: Layer) -> Layer:
    assert layer.rope is not None
    if layer.window:
        return replace(layer, divisors=None)
    return replace(layer, rope=replace(layer.rope, n_rot=layer.rope.n_rot // 2))


def _limits(keys: Keys, name: str, n: int) -> tuple[float, ...]:
    limits = keys.numbers(name, n) if keys.has(name) else (0.0,) * n
    if not all(limit >= 0 for limit in limits):
        raise ModelError(f"metadata key {keys.architecture}.{name} has a negative limit")
    return tuple(limit if limit > 1e-6 else 0.0 for limit in limits)


def build(p: Tracer, params: Step35Params) -> None:
    """Build the model."""
    hp = params.common
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = _layer(p, x, hp, i, params.limits[i], params.shared_limits[i])
    p.output(parts.logits(p, x, hp))


def build_draft(p: Tracer, params: Step35Params) -> None:
    """Build the first MTP block: one more layer, without gate limits."""
    parts.next_token(p, params.common, lambda x: _layer(p, x, params.common, params.draft, 0.0, 0.0), is_normed=False)


def _layer(p: Tracer, x: Handle, hp: TransformerParams, i: int, limit: float, shared_limit: float) -> Handle:
    x = x + parts.gated_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, optional=True)
    h = p.rms_norm(x, "ffn_norm", eps=hp.eps)
    return x + parts.experts_or_feed_forward(p, h, hp, i, limit=limit, shared_limit=shared_limit)
