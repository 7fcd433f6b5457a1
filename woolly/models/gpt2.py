"""GPT-2, StarCoder: layer norms, biases, learned positions, an MLP with GELU and no gate."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.params import TransformerParams, read_transformer
from woolly.models.starcoder2 import build_plain
from woolly.plan import Tracer

ARCHITECTURES = ("gpt2", "starcoder")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox", norm="layer").without_ropes()


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_plain(p, p.embed_position(p.embed("token_embd", width=hp.width), "position_embd"), hp)
