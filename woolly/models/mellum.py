"""Mellum 2: Qwen 3 MoE. Three of four layers have sliding windows and a separate, unscaled rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.models.qwen3 import build as build


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    base = keys.number("rope.freq_base", 10000.0)
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS, period=4, local_base=base)
    return replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn // keys.positive("expert_used_count", 1)))
