"""Qwen 1: Llama with q, k and v in one matrix with biases; files name twice the width of the feed-forward network."""

from __future__ import annotations

from dataclasses import replace

from woolly.models.llama import build as build
from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    hp = read_transformer(keys, "neox")
    return replace(hp, layers=tuple(replace(layer, ffn=layer.ffn // 2) for layer in hp.layers))
