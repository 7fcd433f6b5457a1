"""T5: encoder-decoder with relative position biases and no other positions.

A sequence begins with the encoder's rows in place of tokens. They provide K and V of each layer's cross-attention. The
decoder's rows follow, and attend to each other only. Outputs at encoder rows are not used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts, t5encoder
from woolly.models.params import TransformerParams
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class T5Params:
    """Parameters of encoder and decoder, and the decoder's start token."""

    encoder: TransformerParams
    decoder: TransformerParams
    start: int


def read(keys: Keys) -> T5Params:
    """Read the parameters. Decoder layers have the same sizes as encoder layers."""
    encoder, start = t5encoder.read(keys), keys.integer("decoder_start_token_id")
    n = keys.positive("decoder_block_count", encoder.n_layers)
    return T5Params(encoder, replace(encoder, layers=encoder.layers[:1] * n, mask=""), start)


def build(p: Tracer, both: T5Params) -> None:
    """Build the decoder, or only the encoder if embeddings are requested."""
    if p.pooling is not None:
        build_encoder(p, both)
        return
    hp = both.decoder
    x = source = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"dec.blk.{i}"):
            q, k, v = parts.projections(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp.layers[i])
            table = "attn_rel_b" if p.has("attn_rel_b") else "/dec.blk.0.attn_rel_b"
            a = p.attention(q, k, v, head_dim=hp.layers[i].head_dim, scale=1.0, mask="since", distances=table)
            x = x + p.linear(a, "attn_o", width=hp.width)
            x = x + _cross(p, p.rms_norm(x, "cross_attn_norm", eps=hp.eps), source, hp, i)
            x = x + t5encoder.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.skip("enc")
    h = p.rms_norm(p.output_rows(x), "dec.output_norm", eps=hp.eps)
    # A tied embedding has larger weights than an output matrix, so the rows are scaled down.
    p.output(parts.unembedded(p, h if p.has("output") else p.scale(h, hp.width**-0.5), hp))


def build_encoder(p: Tracer, both: T5Params) -> None:
    """Build the encoder, which returns a row per token of the prompt."""
    p.skip("dec")
    t5encoder.build(p, both.encoder)


def _cross(p: Tracer, h: Handle, source: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build cross-attention. Some files have a position bias for it, which T5 does not use."""
    this = hp.layers[layer]
    q = p.linear(h, "cross_attn_q", width=this.heads * this.head_dim)
    k = p.linear(source, "cross_attn_k", width=this.kv_heads * this.head_dim)
    v = p.linear(source, "cross_attn_v", width=this.kv_heads * this.v_dim)
    p.skip("cross_attn_rel_b")
    a = p.attention(q, k, v, head_dim=this.head_dim, scale=1.0, mask="before")
    return p.linear(a, "cross_attn_o", width=hp.width)
