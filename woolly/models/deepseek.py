"""DeepSeek MoE, Ling 1: Llama with experts after dense layers, some for all rows; shares need not sum to 1."""

from __future__ import annotations

from dataclasses import replace

from woolly.models.llama import build
from woolly.models.metadata import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer

__all__ = ["ARCHITECTURES", "build", "read"]

ARCHITECTURES = ("deepseek", "bailingmoe")


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    hp = read_transformer(keys, "adjacent", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=False))
