"""Baichuan 1 and 2, Refact: Llama; in Refact and the 13B models scores fall with distance, and no head turns."""

from __future__ import annotations

from dataclasses import replace

from woolly.models.llama import build as build
from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams, read_transformer

ARCHITECTURES = ("baichuan", "refact")


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file. Only its 40 layers tell a 13B model; Refact is always of that kind."""
    hp = read_transformer(keys, "adjacent", knows=("attention.max_alibi_bias",))
    if keys.architecture == "baichuan" and hp.n_layers != 40:
        return hp
    return replace(hp.without_ropes(), alibi=keys.number("attention.max_alibi_bias", 8.0))
