"""Orion, Jais 1: Llama with layer norms; Jais has ALiBi instead of rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("orion", "jais")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    if keys.architecture == "orion":
        return read_transformer(keys, "neox", norm="layer")
    hp = read_transformer(keys, "neox", knows=("attention.max_alibi_bias",), norm="layer").without_ropes()
    layers = tuple(replace(layer, scale=1.0 / layer.head_dim) for layer in hp.layers)
    return replace(hp, layers=layers, alibi=keys.number("attention.max_alibi_bias", 0.0))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.layer_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.feed_forward(p, p.layer_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
