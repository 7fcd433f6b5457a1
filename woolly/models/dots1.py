"""dots.llm1: Qwen 3 with dense layers before MoE layers; sigmoid routing with bias, shared experts."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.models.qwen3 import build as build


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=False))
