"""Llama Nemotron: Llama in which a layer may have no attention, a linear layer instead of attention, or no MLP."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "adjacent", optional_heads=True)


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i, layer in enumerate(hp.layers):
        with p.scope(f"blk.{i}"):
            if layer.kv_heads:
                q, k, v = parts.projections(p, p.rms_norm(x, "attn_norm", eps=hp.eps), layer)
                q, k = (parts.apply_rope(p, y, layer) for y in (q, k))
                a = p.attention(q, k, v, head_dim=layer.head_dim, scale=layer.scale)
                x = x + p.linear(a, "attn_output", width=hp.width)
            elif layer.heads:
                x = x + p.linear(p.rms_norm(x, "attn_norm", eps=hp.eps), "attn_output", width=hp.width)
            if layer.ffn:
                x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    parts.read_out(p, x, hp)
