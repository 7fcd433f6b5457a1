"""Phi 1.5 and 2, GPT-J: one layer norm, attention and an MLP without a gate in parallel."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer
from woolly.plan.ops.basic import Act

ARCHITECTURES = ("phi2", "gptj")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "adjacent" if keys.architecture == "gptj" else "neox", norm="layer")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_parallel(p, hp, act="gelu")


def build_parallel(p: Tracer, hp: TransformerParams, *, act: Act) -> None:
    """Build the model with this activation. A second norm in the file belongs to attention."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.layer_norm(x, "attn_norm", eps=hp.eps)
            a = p.layer_norm(x, "attn_norm_2", eps=hp.eps) if p.has("attn_norm_2") else h
            x = x + parts.self_attention(p, a, hp, i) + parts.plain_feed_forward(p, h, hp, i, act=act)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
