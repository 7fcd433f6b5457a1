"""Qwen 2 and 2.5: Llama with biases on q, k and v, and rotary pairs in halves."""

from __future__ import annotations

from woolly.models.llama import build
from woolly.models.params import Keys, TransformerParams, read_transformer

__all__ = ["build", "read"]


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    return read_transformer(keys, "halves")
