"""Ministral 3, Mistral Small 3, Devstral: Llama in which q is scaled with the logarithm of its position."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build
from woolly.models.params import EXPERT_KEYS, MAX_POSITION, TransformerParams, read_experts, read_transformer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    tempers = ("attention.temperature_scale", "attention.temperature_length")
    known = (*EXPERT_KEYS, *tempers, "rope.scaling.yarn_log_multiplier")
    hp = read_transformer(keys, "adjacent", knows=known)
    original = keys.positive("rope.scaling.original_context_length", keys.positive("context_length"))
    length = keys.positive("attention.temperature_length", original)
    return replace(
        hp,
        experts=read_experts(keys, normalize=True, ffn=hp.ffn),
        temper=keys.number("attention.temperature_scale", 0.0),
        temper_length=min(length, MAX_POSITION),
    )
