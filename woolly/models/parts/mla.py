"""Multi-head latent attention (MLA): K and V of all heads are cached as one short row per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from woolly.gguf.keys import Keys
from woolly.models.params import Layer, TransformerParams
from woolly.models.parts.attention import apply_rope
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class Latent:
    """MLA widths."""

    rank: int  # width of the latent (kv_lora_rank)
    k_dim: int  # columns of a q or k head, with the rope part
    v_dim: int
    n_rot: int  # rope columns of k, shared by all heads


def read_latent(keys: Keys, layer: Layer) -> Latent:
    """Read the widths. Files with a fused K and V matrix have the head sizes under the usual keys."""
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
    """Build MLA over the latent (absorbed) if the file splits the KV matrix, else over expanded K and V.

    Prefill and decode use the same form, so results are bit-identical. Without rope, the rope part is not rotated.
    Optional: gates per head or column, sinks, and a norm of the rope part. `indexer` selects the positions to attend to
    from h and the input of q; with None, rows attend to all positions.
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
