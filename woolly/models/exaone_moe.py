"""K-EXAONE: Qwen 3 with dense layers before MoE layers. Three of four layers have sliding windows and rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.models.qwen3 import build as build

ARCHITECTURES = ("exaone-moe",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    window = keys.positive("attention.sliding_window", 128)  # 0 would disable rope in all layers
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "nextn_predict_layers"), period=4, window=window)
    hp = hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
    return replace(hp, experts=read_experts(keys, normalize=False, scoring="sigmoid"))
