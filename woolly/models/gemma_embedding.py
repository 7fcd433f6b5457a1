"""EmbeddingGemma: Gemma 3 with bidirectional attention, global or windowed, and two matrices after pooling."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.gemma2 import build as build_gemma2
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("gemma-embedding",)


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox", period=6, local_base=10000.0, causal=False)


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_gemma2(p, hp, qk_norm=True)
