"""ERNIE 4.5: Llama; MoE with routing bias and shared experts. PaddleOCR-VL uses NeoX rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan.rope_scaling import RopeStyle

ARCHITECTURES = ("ernie4_5", "ernie4_5-moe", "paddleocr")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Text has the same M-RoPE position on all axes, so sections are not needed."""
    style: RopeStyle = "neox" if keys.architecture == "paddleocr" else "adjacent"
    hp = read_transformer(keys, style, knows=(*EXPERT_KEYS, "rope.dimension_sections"))
    return replace(hp, experts=read_experts(keys, normalize=True))
