"""Laguna: attention with softplus gates, sliding-window layers with separate heads and rope, sigmoid-routed MoE."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Every fourth layer, starting with the first, has global attention."""
    base = keys.number("rope.freq_base", 10000.0)
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, period=4, dense_first=True, local_base=base)
    return replace(hp, experts=read_experts(keys, normalize=True, scoring="sigmoid"))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.gated_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, act="softplus")
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.logits(p, x, hp))
