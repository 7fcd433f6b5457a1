"""Falcon H1: attention and Mamba 2 in parallel in every layer."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_recurrence, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("falcon-h1",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Converters fold the multipliers into the weights."""
    return replace(read_transformer(keys, "neox", knows=("ssm.state_size",)), recurrence=read_recurrence(keys))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            x = x + parts.self_attention(p, h, hp, i) + parts.mamba2(p, h, hp)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.logits(p, x, hp))
