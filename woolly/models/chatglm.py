"""ChatGLM and GLM-4-9B: Llama with fused QKV and fused gate and up; rope on half of each head."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "adjacent")
