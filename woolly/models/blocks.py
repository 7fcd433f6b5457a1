"""Paragraphs that several papers share."""

from __future__ import annotations

from woolly.models.params import TransformerParams
from woolly.plan import Handle, Tracer

__all__ = ["feed_forward", "logits", "self_attention"]


def self_attention(p: Tracer, h: Handle, hp: TransformerParams, layer: int, *, qk_norm: bool = False) -> Handle:
    """Grouped-query attention with rotary positions; q and k normed per head where the paper says so."""
    q_width, kv_width = hp.n_heads * hp.head_dim, hp.n_kv_heads * hp.head_dim
    q = p.linear(h, "attn_q", width=q_width)
    k, v = p.linear(h, "attn_k", width=kv_width), p.linear(h, "attn_v", width=kv_width)
    if qk_norm:
        q, k = p.rms_norm(q, "attn_q_norm", eps=hp.eps), p.rms_norm(k, "attn_k_norm", eps=hp.eps)
    q, k = p.rope(q, hp.rope), p.rope(k, hp.rope)
    a = p.attention(q, k, v, layer=layer, head_dim=hp.head_dim, scale=hp.scale, window=hp.window)
    return p.linear(a, "attn_output", width=hp.width)


def feed_forward(p: Tracer, h: Handle, hp: TransformerParams) -> Handle:
    """SwiGLU."""
    gate, up = p.linear(h, "ffn_gate", width=hp.ffn), p.linear(h, "ffn_up", width=hp.ffn)
    return p.linear(p.swiglu(gate, up), "ffn_down", width=hp.width)


def logits(p: Tracer, x: Handle, hp: TransformerParams) -> Handle:
    """The last norm and the output matrix, which is the embedding's own where the file has no other."""
    h = p.rms_norm(p.output_rows(x), "output_norm", eps=hp.eps)
    return p.linear(h, "output" if p.has("output") else "token_embd", width=p.rows("token_embd"))
