"""Phi 3.5 MoE: Phi 3 with layer norms, biases, and two experts selected by SparseMixer."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts
from woolly.models.phi3 import divided, read_divided
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_divided(keys, EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=False, scoring="sparsemixer", ffn=hp.ffn))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model. The norms are layer norms with biases, as in training; llama.cpp uses RMS norms."""
    hp = divided(p, hp)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.layer_norm(x, "attn_norm", eps=hp.eps), hp, i)
            x = x + parts.experts_or_feed_forward(p, p.layer_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
