"""Jamba: Mamba layers, some attention layers without rope, and MoE in some layers."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_recurrence, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "ssm.state_size"), optional_heads=True)
    hp = replace(hp, recurrence=read_recurrence(keys), experts=read_experts(keys, normalize=False, ffn=hp.ffn))
    return hp.with_ropes(*(False for _ in hp.layers))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            x = x + (parts.mamba(p, h, hp) if hp.recurrent[i] else parts.self_attention(p, h, hp, i))
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.logits(p, x, hp))
