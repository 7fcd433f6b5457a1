"""DeepSeek MoE, DeepSeek-OCR, Ling 1: Llama with experts after dense layers, some for all rows.

Shares of experts need not sum to 1.
"""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import UnsupportedError
from woolly.models.llama import build as build
from woolly.models.metadata import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer

ARCHITECTURES = ("deepseek", "bailingmoe", "deepseek2-ocr")


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    is_ocr = keys.architecture == "deepseek2-ocr"
    if is_ocr:
        # Its files were written as those of a latent attention that it has not: whole heads turn, where they say none.
        keys = keys.without("rope.dimension_count")
        if keys.is_set("attention.sliding_window"):
            raise UnsupportedError("a deepseek2-ocr model with a window of attention is not supported yet")
    hp = read_transformer(keys, "neox" if is_ocr else "adjacent", knows=EXPERT_KEYS)
    return replace(hp, experts=read_experts(keys, normalize=False))
