"""EXAONE 4: OLMo 2 with q and k normed per head; the largest has windows, and rotary positions only there."""

from __future__ import annotations

from woolly.models.metadata import Keys
from woolly.models.olmo2 import build as build
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file. Only the number of layers tells whether a file without a pattern has windows."""
    if keys.positive("block_count") != 64 and not keys.is_set("attention.sliding_window_pattern"):
        return read_transformer(keys, "neox", period=1)
    window = keys.positive("attention.sliding_window", 4096)  # of 0, no layer would turn
    hp = read_transformer(keys, "neox", period=4, window=window)
    return hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
