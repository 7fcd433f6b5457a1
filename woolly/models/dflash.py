"""DFlash: draft head that predicts a block of masked tokens in one step, with K and V from the model's hidden states.

Tokens that the model has computed do not run through the head's layers: the inputs of some model layers are projected
to one row, and the K and V matrices of all head layers read this row.
"""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer

_MAX_BLOCK_TOKENS = 256  # maximum block size accepted from a file


@dataclass(frozen=True)
class DFlashParams:
    """Common parameters and inputs of the head."""

    common: TransformerParams
    layers: tuple[int, ...]  # model layers whose inputs are read
    block: int  # tokens per block, including the known first token


def read(keys: Keys) -> DFlashParams:
    """Read the parameters."""
    common, layers = read_transformer(keys, "neox", period=2), keys.whole_numbers("target_layers")
    block = keys.integer("block_size", 16)
    if not layers or not 2 <= block <= _MAX_BLOCK_TOKENS:
        raise ModelError(
            f"the draft head reads {len(layers)} layers and predicts blocks of {block} tokens; expected at least one"
            f" layer and blocks of 2 to {_MAX_BLOCK_TOKENS}"
        )
    narrowest = min((layer.window for layer in common.layers if layer.window), default=block)
    if narrowest < block:
        raise ModelError(f"blocks of {block} tokens do not fit the draft head's window of {narrowest}")
    return DFlashParams(common, layers, block)


def build_features(p: Tracer, hp: DFlashParams) -> None:
    """Build the features: inputs of several model layers, concatenated and projected to one width."""
    x = p.linear(p.hidden(width=len(hp.layers) * hp.common.width), "fc", width=hp.common.width)
    p.output(p.rms_norm(x, "enc.output_norm", eps=hp.common.eps))


def build_draft(p: Tracer, hp: DFlashParams) -> None:
    """Build K and V for the model's rows and, after `embed`, a block of draft tokens with bidirectional attention."""
    if p.has("markov_w1"):
        raise UnsupportedError("draft heads with a Markov chain over the block (DSpark) are not supported yet")
    p.skip("fc", "d2t", "enc.output_norm")
    common, eps = hp.common, hp.common.eps
    g = p.hidden(width=common.width)
    pairs: list[tuple[Handle, Handle]] = []
    for i, this in enumerate(common.layers):
        with p.scope(f"blk.{i}"):
            k = p.linear(g, "attn_k", width=this.kv_heads * this.head_dim)
            pairs.append((k, p.linear(g, "attn_v", width=this.kv_heads * this.v_dim)))
    kept: list[Handle] = []
    for i, (k, v) in enumerate(pairs):
        with p.scope(f"blk.{i}"):
            k = parts.apply_rope(p, p.rms_norm(k, "attn_k_norm", eps=eps), common.layers[i])
            kept.append(parts.attend(p, k, k, v, common, i))  # the output is unused: the step stores K and V
    x = p.embed("token_embd" if p.has("token_embd") else "/token_embd", width=common.width)
    for i, this in enumerate(common.layers):
        with p.scope(f"blk.{i}"):
            q, k, v = parts.projections(p, p.rms_norm(x, "attn_norm", eps=eps), this)
            q, k = p.rms_norm(q, "attn_q_norm", eps=eps), p.rms_norm(k, "attn_k_norm", eps=eps)
            q, k = parts.apply_rope(p, q, this), parts.apply_rope(p, k, this)
            a = p.attention(q, k, v, like=kept[i], head_dim=this.head_dim, scale=this.scale, window=this.window)
            x = x + p.linear(a, "attn_output", width=common.width)
            x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=eps), common, i)
    y = p.rms_norm(p.output_rows(x), "output_norm", eps=eps)
    head = next(name for name in ("output", "/output", "/token_embd") if p.has(name))
    p.output(p.linear(y, head, width=p.rows(head)))
