"""Qwen 1.5 and 2 MoE: Qwen 2 with MoE, and a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=False, ffn=hp.ffn // keys.positive("expert_used_count", 1)))
