"""Llama with bidirectional attention, and EuroBERT, which differs only in the order of rope pairs."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import TransformerParams, read_transformer

ARCHITECTURES = ("eurobert", "llama-embed")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "adjacent" if keys.architecture == "llama-embed" else "neox", causal=False)
