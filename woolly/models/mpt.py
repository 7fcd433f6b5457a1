"""MPT: layer norms, ALiBi, an MLP with GELU and no gate."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    known = ("attention.clamp_kqv", "attention.max_alibi_bias")
    hp = read_transformer(keys, "neox", knows=known, norm="layer").without_ropes()
    return replace(hp, alibi=keys.number("attention.max_alibi_bias", 0.0))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model. Learned positions, and QK norm over all heads, are optional."""
    x = p.embed("token_embd", width=hp.width)
    if p.has("position_embd"):
        x = p.embed_position(x, "position_embd")
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + _attention(p, p.layer_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.plain_feed_forward(p, p.layer_norm(x, "ffn_norm", eps=hp.eps), hp, i, act="gelu_erf")
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))


def _attention(p: Tracer, h: Handle, hp: TransformerParams, i: int) -> Handle:
    q, k, v = parts.projections(p, h, hp.layers[i])
    if p.has("attn_q_norm"):
        q, k = p.layer_norm(q, "attn_q_norm", eps=hp.eps), p.layer_norm(k, "attn_k_norm", eps=hp.eps)
    return p.linear(parts.attend(p, q, k, v, hp, i), "attn_output", width=hp.width)
