"""Qwen 3: q and k are normed per head before they turn; no biases."""

from __future__ import annotations

from woolly.models import blocks
from woolly.models.params import Keys, TransformerParams, read_transformer
from woolly.plan import Tracer

__all__ = ["build", "read"]


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    return read_transformer(keys, "halves")


def build(p: Tracer, hp: TransformerParams) -> None:
    """The whole model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + blocks.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, qk_norm=True)
            x = x + blocks.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp)
    p.output(blocks.logits(p, x, hp))
