"""EmbeddingGemma: Gemma 3 whose rows see the whole text, or a window around them, and two matrices after pooling."""

from __future__ import annotations

from woolly.models.gemma2 import build as build_gemma2
from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("gemma-embedding",)


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file."""
    return read_transformer(keys, "neox", period=6, local_base=10000.0, causal=False)


def build(p: Tracer, hp: TransformerParams) -> None:
    """The whole model."""
    build_gemma2(p, hp, qk_norm=True)
