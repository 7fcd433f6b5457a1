"""EXAONE 4: OLMo 2 with QK norm per head; the largest has sliding windows, and rope only there."""

from __future__ import annotations

from woolly.models.metadata import Keys
from woolly.models.olmo2 import build as build
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. A file without a pattern has windows depending on its number of layers."""
    if keys.positive("block_count") != 64 and not keys.is_set("attention.sliding_window_pattern"):
        return read_transformer(keys, "neox", period=1)
    window = keys.positive("attention.sliding_window", 4096)  # with 0 no layer would have rope
    hp = read_transformer(keys, "neox", period=4, window=window)
    return hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
