"""ERNIE 4.5: Llama; with experts, chosen by biased scores, and some for all rows."""

from __future__ import annotations

from dataclasses import replace

from woolly.models.llama import build
from woolly.models.metadata import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer

__all__ = ["ARCHITECTURES", "build", "read"]

ARCHITECTURES = ("ernie4_5", "ernie4_5-moe")


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file. Of text all sections of positions are one: they turn as without sections."""
    hp = read_transformer(keys, "adjacent", knows=(*EXPERT_KEYS, "rope.dimension_sections"))
    return replace(hp, experts=read_experts(keys, normalize=True))
