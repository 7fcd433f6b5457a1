"""Spark X2.5: gated attention heads, sliding windows with separate rope, MLP with exact GELU."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Without a pattern in the file, every fourth layer is global."""
    return read_transformer(keys, "neox", period=4, local_base=keys.number("rope.freq_base", 10000.0))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.gated_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, optional=True)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i, act="gelu_erf")
    p.output(parts.logits(p, x, hp))
