"""EXAONE 4: OLMo 2 with QK norm per head. The largest model has sliding windows, and rope only in these layers."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.olmo2 import build as build
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Without a pattern in the file, the number of layers determines the windows."""
    if keys.positive("block_count") != 64 and not keys.is_set("attention.sliding_window_pattern"):
        return read_transformer(keys, "neox", period=1)
    window = keys.positive("attention.sliding_window", 4096)  # 0 would disable rope in all layers
    hp = read_transformer(keys, "neox", period=4, window=window)
    return hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
