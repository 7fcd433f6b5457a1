"""Llama 4: three layers with chunked attention per global layer without rope; expert weights apply to the input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, MAX_POSITION, Layer, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer

_TEMPER = ("attention.temperature_scale", "attention.temperature_length")


@dataclass(frozen=True)
class Llama4Params:
    """Common parameters, and a flag for QK norm."""

    common: TransformerParams
    qk_norm: bool


def read(keys: Keys) -> Llama4Params:
    """Read the parameters. The default chunk is 8192 positions; with 0, all layers are global."""
    hp = read_transformer(keys, "adjacent", knows=(*EXPERT_KEYS, *_TEMPER), period=4, window=8192)
    if any(layer.window for layer in hp.layers):
        hp = hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
    experts = read_experts(keys, normalize=False, scoring="sigmoid")
    if experts is not None:
        experts = replace(experts, weigh="input")
    length = min(keys.positive(_TEMPER[1], 8192), MAX_POSITION)
    hp = replace(hp, experts=experts, temper=keys.number(_TEMPER[0], 0.1), temper_length=length)
    return Llama4Params(hp, qk_norm=experts is None or experts.count != 128)  # Maverick has no QK norm


def build(p: Tracer, hp: Llama4Params) -> None:
    """Build the model."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i, layer in enumerate(common.layers):
        with p.scope(f"blk.{i}"):
            a = _attention(p, p.rms_norm(x, "attn_norm", eps=common.eps), hp, layer)
            x = x + p.linear(a, "attn_output", width=common.width)
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, i)
    p.output(parts.logits(p, x, common))


def _attention(p: Tracer, h: Handle, hp: Llama4Params, layer: Layer) -> Handle:
    """Build attention: chunked with rope, then QK norm; or global, where q is scaled by position (temperature)."""
    q, k, v = parts.projections(p, h, layer)
    attention = partial(p.attention, head_dim=layer.head_dim, scale=layer.scale)
    if layer.rope is None:
        return attention(q, k, v, temper=hp.common.temper, temper_length=hp.common.temper_length, temper_offset=1)
    q, k = (parts.apply_rope(p, y, layer) for y in (q, k))
    if hp.qk_norm:
        q, k = (p.rms_norm(y, eps=hp.common.eps, group=layer.head_dim) for y in (q, k))
    return attention(q, k, v, mask="chunked" if layer.window else "", window=layer.window)
