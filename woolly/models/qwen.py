"""Qwen 1: Llama with fused QKV with biases. Files store twice the MLP width."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox")
    return replace(hp, layers=tuple(replace(layer, ffn=layer.ffn // 2) for layer in hp.layers))
