"""Tiny random models with two halves: a decoder that reads what an encoder made of another text."""

from __future__ import annotations

import numpy as np

from tests.cases.encoders import t5, table, vector
from tests.cases.tiny import Tiny

START = 3


def decoder(gated: bool, n_layers: int) -> dict[str, np.ndarray]:
    """All tensors of the decoder's layers; the table of distances is in the first alone."""
    out = vector("dec.output_norm.weight", around=1.0) | table("dec.blk.0.attn_rel_b", 32, 4, 1.0)
    out |= table("dec.blk.0.cross_attn_rel_b", 32, 4)  # which nobody reads
    for i in range(n_layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
            out |= table(f"dec.blk.{i}.{name}", 64, 64, 0.125) | table(f"dec.blk.{i}.cross_{name}", 64, 64, 0.125)
        for name in ("ffn_gate", "ffn_up")[not gated :]:
            out |= table(f"dec.blk.{i}.{name}", 96, 64, 0.125)
        out |= table(f"dec.blk.{i}.ffn_down", 64, 96, 0.1)
        for name in ("attn_norm", "cross_attn_norm", "ffn_norm"):
            out |= vector(f"dec.blk.{i}.{name}.weight", around=1.0)
    return out


READERS = {
    name: Tiny(
        name,
        "t5",
        root=t5(gated) | decoder(gated, n_decoder),
        blocks=lambda tiny, i: {},
        n_kv_heads=4,
        last_norm=False,
        tied=not gated,
        context=256,
        extra={
            "attention.relative_buckets_count": 32,
            "decoder_block_count": n_decoder,
            "decoder_start_token_id": START,
        },
    )
    # llama.cpp opens none whose decoder has more layers than its encoder, 2.
    for name, gated, n_decoder in (("t5-reads", False, 2), ("t5-reads-gated", True, 1))
}

# The answer is longer than the distance from which on all positions share a bucket.
SOURCE = np.random.RandomState(5).randint(0, 264, 45).tolist()
ANSWER = [START, *np.random.RandomState(6).randint(0, 264, 149).tolist()]
EVERY, STRIDE = 10, 4  # rows and columns of the logits that goldens hold
