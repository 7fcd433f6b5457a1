"""Baichuan 1 and 2, Refact: Llama. Refact and the 13B models use ALiBi instead of rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import TransformerParams, read_transformer

ARCHITECTURES = ("baichuan", "refact")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. The 13B model is recognized by its 40 layers; Refact always uses ALiBi."""
    hp = read_transformer(keys, "adjacent", knows=("attention.max_alibi_bias",))
    if keys.architecture == "baichuan" and hp.n_layers != 40:
        return hp
    return replace(hp.without_ropes(), alibi=keys.number("attention.max_alibi_bias", 8.0))
