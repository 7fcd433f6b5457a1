"""DeepSeek MoE, DeepSeek-OCR, Ling 1: Llama with dense layers before MoE layers, and shared experts.

Expert weights are not always normalized.
"""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer

ARCHITECTURES = ("deepseek", "bailingmoe", "deepseek2-ocr")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    is_ocr = keys.architecture == "deepseek2-ocr"
    if is_ocr:
        # Files have MLA keys although the model has no MLA: rope rotates complete heads.
        keys = keys.without("rope.dimension_count")
        if keys.is_set("attention.sliding_window"):
            raise UnsupportedError("deepseek2-ocr models with sliding-window attention are not supported yet")
    hp = read_transformer(keys, "neox" if is_ocr else "adjacent", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=False))
