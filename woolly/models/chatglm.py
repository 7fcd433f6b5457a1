"""ChatGLM and GLM-4-9B: Llama with q, k, v in one matrix, gate and up in another; half of each head turns."""

from __future__ import annotations

from woolly.models.llama import build as build
from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    return read_transformer(keys, "adjacent")
