"""MiniMax M2: rope on half of each head, QK norm over all heads, MoE with sigmoid routing and bias."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.models.qwen3 import build as build

ARCHITECTURES = ("minimax-m2",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=True, scoring="sigmoid", ffn=hp.ffn))
