"""Qwen 3.5, 3.6 and Qwen3-Next: gated delta nets, and gated attention in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_recurrence, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("qwen35", "qwen35moe", "qwen3next")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Text has the same M-RoPE position on all axes, so sections are not needed."""
    knows = (*EXPERT_KEYS, "ssm.state_size", "rope.dimension_sections", "nextn_predict_layers")
    hp = read_transformer(keys, "neox", knows=knows, optional_heads=True)
    period = keys.positive("full_attention_interval", 4)
    recurrent = keys.pattern("attention.recurrent_layers", hp.n_layers, period)
    return replace(
        hp,
        experts=read_experts(keys, normalize=True, ffn=hp.ffn // keys.positive("expert_used_count", 1) or None),
        recurrence=read_recurrence(keys),
        recurrent=recurrent,
    )


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = _layer(p, x, hp, i)
    p.output(parts.logits(p, x, hp))


def build_draft(p: Tracer, hp: TransformerParams) -> None:
    """Build the MTP block: a layer with attention, like the model's last layer."""
    like = hp.n_layers - 1 - hp.recurrent[::-1].index(False)
    parts.next_token(p, hp, lambda x: _layer(p, x, hp, like))


def _layer(p: Tracer, x: Handle, hp: TransformerParams, i: int) -> Handle:
    h = p.rms_norm(x, "attn_norm", eps=hp.eps)
    x = x + (parts.gated_delta_net(p, h, hp) if hp.recurrent[i] else _attention(p, h, hp, i))
    return x + parts.experts_or_feed_forward(p, p.rms_norm(x, "post_attention_norm", eps=hp.eps), hp, i)


def _attention(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build attention. The q matrix also contains the output gate of each head."""
    this = hp.layers[layer]
    width, kv_width = this.heads * this.head_dim, this.kv_heads * this.head_dim
    q, gate = p.split(p.linear(h, "attn_q", width=2 * width), this.head_dim, this.head_dim, groups=this.heads)
    k, v = p.linear(h, "attn_k", width=kv_width), p.linear(h, "attn_v", width=kv_width)
    q, k = p.rms_norm(q, "attn_q_norm", eps=hp.eps), p.rms_norm(k, "attn_k_norm", eps=hp.eps)
    q, k = (parts.apply_rope(p, y, this) for y in (q, k))
    a = parts.attend(p, q, k, v, hp, layer) * p.unary(gate, "sigmoid")
    return p.linear(a, "attn_output", width=hp.width)
