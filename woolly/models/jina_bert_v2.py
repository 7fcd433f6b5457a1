"""Jina Embeddings 2: BERT with ALiBi instead of positions, and GeGLU."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("jina-bert-v2",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. The ALiBi exponent, 8, is from the paper because files do not contain it."""
    hp = read_transformer(keys, "neox", norm="layer", causal=False, knows=("attention.max_alibi_bias",))
    alibi = keys.number("attention.max_alibi_bias", 8.0)
    return replace(hp.without_ropes(), alibi=alibi, separator=keys.token("seperator_token_id", 102))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.layer_norm(parts.typed(p, p.embed("token_embd", width=hp.width), hp), "token_embd_norm", eps=hp.eps)
    parts.embeddings(p, parts.post_norm_layers(p, x, hp, _feed_forward))


def _feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """MLP with a gate (separate or fused matrices) or without one."""
    if p.has("ffn_gate") or p.rows("ffn_up") != hp.layers[layer].ffn:
        return parts.feed_forward(p, h, hp, layer, act="gelu_erf")
    return parts.plain_feed_forward(p, h, hp, layer, act="gelu_erf")
