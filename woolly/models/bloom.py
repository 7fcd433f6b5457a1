"""BLOOM: GPT-2 with a norm after the embedding, and ALiBi instead of learned positions."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.params import TransformerParams, read_transformer
from woolly.models.starcoder2 import build_plain
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. The ALiBi exponent, 8, is from the paper because files do not contain it."""
    hp = read_transformer(keys, "neox", knows=("attention.max_alibi_bias",), norm="layer").without_ropes()
    return replace(hp, alibi=keys.number("attention.max_alibi_bias", 8.0))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.layer_norm(p.embed("token_embd", width=hp.width), "token_embd_norm", eps=hp.eps)
    build_plain(p, x, hp)
