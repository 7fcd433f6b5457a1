"""Self-attention of decoders."""

from __future__ import annotations

from woolly.models.params import Layer, TransformerParams
from woolly.plan import Handle, Tracer
from woolly.plan.ops.basic import Act


def self_attention(p: Tracer, h: Handle, hp: TransformerParams, layer: int, *, qk_norm: bool = False) -> Handle:
    """Build grouped-query attention with rope; with `qk_norm`, q and k are normed before rope."""
    q, k, v = projections(p, h, hp.layers[layer])
    if qk_norm:
        q, k = p.rms_norm(q, "attn_q_norm", eps=hp.eps), p.rms_norm(k, "attn_k_norm", eps=hp.eps)
    q, k = (apply_rope(p, x, hp.layers[layer]) for x in (q, k))
    return p.linear(attend(p, q, k, v, hp, layer), "attn_output", width=hp.width)


def gated_attention(
    p: Tracer, h: Handle, hp: TransformerParams, layer: int, *, act: Act = "sigmoid", optional: bool = False
) -> Handle:
    """Build attention with QK norm per head and an output gate.

    The gate's matrix decides whether there is a gate per head or per element. With `optional`, the norms and the gate
    may be missing.
    """
    this = hp.layers[layer]
    q, k, v = projections(p, h, this)
    gate = None
    if p.has("attn_gate") or not optional:
        width = this.heads if p.rows("attn_gate") == this.heads else this.heads * this.v_dim
        gate = p.unary(p.linear(h, "attn_gate", width=width), act)
    if p.has("attn_q_norm") or not optional:
        q = p.rms_norm(q, "attn_q_norm", eps=hp.eps)
    if p.has("attn_k_norm") or not optional:
        k = p.rms_norm(k, "attn_k_norm", eps=hp.eps)
    a = attend(p, apply_rope(p, q, this), apply_rope(p, k, this), v, hp, layer)
    return p.linear(a if gate is None else a * gate, "attn_output", width=hp.width)


def shared_attention(p: Tracer, h: Handle, hp: TransformerParams, layer: int, kept: dict[bool, Handle]) -> Handle:
    """Build Gemma's attention: QKV norms, and KV sharing in the last layers.

    Sharing layers use `kept`, the K and V of the last layer of the same kind, windowed or global. Without a V matrix, V
    is K before norm and rope.
    """
    this = hp.layers[layer]
    q = p.rms_norm(p.linear(h, "attn_q", width=this.heads * this.head_dim), "attn_q_norm", eps=hp.eps)
    q = apply_rope(p, q, this)
    if layer >= hp.n_own:
        like = kept[this.window > 0]
        p.skip("attn_k", "attn_k_norm", "attn_v")  # unused, but some files have these tensors
        return p.attention(q, like=like, head_dim=this.head_dim, scale=this.scale, window=this.window)
    k = p.linear(h, "attn_k", width=this.kv_heads * this.head_dim)
    v = p.linear(h, "attn_v", width=this.kv_heads * this.v_dim) if p.has("attn_v") else k
    v = p.rms_norm(v, eps=hp.eps, group=this.v_dim)
    k = apply_rope(p, p.rms_norm(k, "attn_k_norm", eps=hp.eps), this)
    kept[this.window > 0] = attend(p, q, k, v, hp, layer)
    return kept[this.window > 0]


def projections(p: Tracer, h: Handle, layer: Layer) -> tuple[Handle, Handle, Handle]:
    """Return q, k and v of the layer's input. The matrices may be fused."""
    widths = [layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.kv_heads * layer.v_dim]
    if p.has("attn_qkv"):
        firsts = (0, widths[0], widths[0] + widths[1])
        q, k, v = (p.linear(h, "attn_qkv", width=n, first=at) for n, at in zip(widths, firsts, strict=True))
    else:
        q, k, v = (p.linear(h, f"attn_{x}", width=n) for x, n in zip("qkv", widths, strict=True))
    if layer.clamp:
        q, k, v = (p.clamp(x, layer.clamp) for x in (q, k, v))
    return q, k, v


def apply_rope(p: Tracer, x: Handle, layer: Layer) -> Handle:
    """Apply the layer's rope, if any, to q or k."""
    if layer.rope is None:
        return x
    default = "/rope_freqs" if p.has("/rope_freqs") else None
    return p.rope(x, layer.rope, default if layer.divisors == "" else layer.divisors)


def attend(p: Tracer, q: Handle, k: Handle, v: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build attention with the parameters of the layer, and with sinks if the file has them."""
    this = hp.layers[layer]
    return p.attention(
        q,
        k,
        v,
        head_dim=this.head_dim,
        scale=this.scale,
        window=this.window,
        softcap=hp.softcap,
        sinks="attn_sinks" if p.has("attn_sinks") else None,
        temper=hp.temper,
        temper_length=hp.temper_length,
        mask=hp.mask,
        alibi=hp.alibi,
    )
