"""Qwen 3, its MoE, the text part of its VL models, OpenELM: QK norm per head before rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "openelm")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Text has the same M-RoPE position on all axes, so sections are not needed."""
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "rope.dimension_sections"))
    return replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn // keys.positive("expert_used_count", 1)))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = layer(p, x, hp, i)
    parts.read_out(p, x, hp)


def layer(p: Tracer, x: Handle, hp: TransformerParams, i: int) -> Handle:
    """Build one layer."""
    x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i, qk_norm=True)
    return x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
