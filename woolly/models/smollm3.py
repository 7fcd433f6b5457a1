"""SmolLM 3: Llama without rope in every fourth layer."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import TransformerParams, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "adjacent")
    return hp.with_ropes(*((i + 1) % 4 != 0 for i in range(hp.n_layers)))
