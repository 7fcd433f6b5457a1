"""Nemotron 4, Minitron and Jais 2: layer norms, an MLP with squared ReLU and no gate."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("nemotron", "jais2")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox", norm="layer")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.layer_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.plain_feed_forward(p, p.layer_norm(x, "ffn_norm", eps=hp.eps), hp, i, act="relu2")
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
