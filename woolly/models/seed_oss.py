"""Seed-OSS: Qwen 2, but files name the norm before the MLP post_attention_norm."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.feed_forward(p, p.rms_norm(x, "post_attention_norm", eps=hp.eps), hp, i)
    parts.read_out(p, x, hp)
