"""Qwen 2 and 2.5, the text model of their VL models, and EXAONE 3: Llama with biases and NeoX rope."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import TransformerParams, read_transformer

ARCHITECTURES = ("qwen2", "qwen2vl", "exaone", "pangu-embedded")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Text has the same M-RoPE position on all axes, so sections are not needed."""
    return read_transformer(keys, "neox", knows=("rope.dimension_sections",))
