"""Maple: MoE with clamped gates; sliding windows with rope on half of each head, global layers without rope."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, Layer, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer
from woolly.plan.ops.basic import Gate


@dataclass(frozen=True)
class MapleParams:
    """Common parameters, and gate limits of the experts per layer."""

    common: TransformerParams
    limits: tuple[float, ...]


def read(keys: Keys) -> MapleParams:
    """Read the parameters. Some files have the columns of rope only for sliding-window layers."""
    keys.positive("attention.sliding_window")  # without this key no layer would have rope
    if not keys.is_set("rope.dimension_count"):
        keys = keys.without("rope.dimension_count")
    base = keys.number("rope.freq_base", 10000.0)
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "swiglu_clamp_exp"), period=4, local_base=base)
    hp = replace(
        hp.with_ropes(*(layer.window > 0 for layer in hp.layers)),
        experts=read_experts(keys, normalize=True, ffn=hp.ffn),
    )
    limits = keys.numbers("swiglu_clamp_exp", hp.n_layers) if keys.has("swiglu_clamp_exp") else (0.0,) * hp.n_layers
    return MapleParams(replace(hp, layers=tuple(_inclusive(layer) for layer in hp.layers)), limits)


def _inclusive(layer: Layer) -> Layer:
    """Rows attend to their own position and `sliding_window` earlier ones, as in the published code."""
    return replace(layer, window=layer.window + 1) if layer.window else layer


def build(p: Tracer, params: MapleParams) -> None:
    """Build the model."""
    hp = params.common
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, qk_norm=True)
            h, limit = p.rms_norm(x, "ffn_norm", eps=hp.eps), params.limits[i]
            act: Gate = "clipped" if limit else "silu"
            x = x + parts.experts_or_feed_forward(p, h, hp, i, act=act, limit=limit)
    p.output(parts.logits(p, x, hp))
