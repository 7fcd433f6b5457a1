"""Attention over a latent: K and V of all heads are kept as one short row per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from woolly.models.metadata import Keys
from woolly.models.params import Layer, TransformerParams
from woolly.models.parts.attention import apply_rope
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class Latent:
    """Widths of what K and V are made from."""

    rank: int  # of the latent
    k_dim: int  # of a head of q and k, the part that turns included
    v_dim: int
    n_rot: int  # columns of k that turn, shared by all heads


def read_latent(keys: Keys, layer: Layer) -> Latent:
    """The widths; files with K and V in one matrix name those of a head by the usual keys."""
    rank, n_rot = keys.positive("attention.kv_lora_rank"), keys.positive("rope.dimension_count")
    k_dim = keys.positive("attention.key_length_mla", layer.head_dim)
    v_dim = keys.positive("attention.value_length_mla", layer.v_dim)
    return Latent(rank, k_dim, v_dim, n_rot)


def latent_attention(
    p: Tracer,
    h: Handle,
    hp: TransformerParams,
    layer: int,
    latent: Latent,
    indexer: Callable[[Handle, Handle], Handle | None] = lambda h, low: None,
) -> Handle:
    """Attention of all heads over the latent itself if the file splits its matrix, else over K and V made from it.

    Without a rope the part that other models turn stays as it is. Prompts and answers go the same way: the two would
    differ in the last bits. Heads, or all their columns, may have gates, heads sinks, and the part that turns a norm.
    `indexer` gives the positions to look at, from h and what q is made from; None: all.
    """
    this, n_rot, rank, straight = hp.layers[layer], latent.n_rot, latent.rank, latent.k_dim - latent.n_rot
    heads = this.heads
    if p.has("attn_q_a"):
        low = p.rms_norm(p.linear(h, "attn_q_a", width=p.rows("attn_q_a")), "attn_q_a_norm", eps=hp.eps)
        q = p.linear(low, "attn_q_b", width=heads * latent.k_dim)
    else:
        q, low = p.linear(h, "attn_q", width=heads * latent.k_dim), h
    kv = p.linear(h, "attn_kv_a_mqa", width=rank + n_rot)
    q_pe, k_pe = p.slice(q, first=straight, width=n_rot, groups=heads), p.slice(kv, first=rank, width=n_rot)
    if p.has("attn_k_norm"):
        k_pe = p.rms_norm(k_pe, "attn_k_norm", eps=hp.eps)
    q_pe, k_pe = (apply_rope(p, x, this) for x in (q_pe, k_pe))
    q = p.slice(q, first=0, width=straight, groups=heads)
    c = p.rms_norm(p.slice(kv, first=0, width=rank), "attn_kv_a_norm", eps=hp.eps)
    attention = partial(
        p.attention,
        scale=this.scale,
        window=this.window,
        temper=hp.temper,
        temper_length=hp.temper_length,
        chosen=indexer(h, low),
        sinks="attn_sinks" if p.has("attn_sinks") else None,
    )
    if p.has("attn_k_b"):
        q = p.concat(p.per_head_linear(q, "attn_k_b", heads=heads, width=rank), q_pe, heads=heads)
        a = attention(q, p.concat(c, k_pe), head_dim=rank + n_rot, v_dim=rank)
        a = p.per_head_linear(a, "attn_v_b", heads=heads, width=latent.v_dim)
    else:
        kv_dim = straight + latent.v_dim
        both = p.linear(c, "attn_kv_b", width=heads * kv_dim)
        k = p.concat(p.slice(both, first=0, width=straight, groups=heads), k_pe, heads=heads, shared=True)
        v = p.slice(both, first=straight, width=latent.v_dim, groups=heads)
        a = attention(p.concat(q, q_pe, heads=heads), k, v, head_dim=latent.k_dim)
    if p.has("attn_gate"):
        width = heads if p.rows("attn_gate") == heads else a.width
        a = a * p.unary(p.linear(h, "attn_gate", width=width), "sigmoid")
    return p.linear(a, "attn_output", width=hp.width)
