"""Gemma 3: Gemma 2 with QK norm per head, five sliding-window layers per global layer, and separate ropes for both."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.gemma2 import build as build_gemma2
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=("final_logit_softcapping",), period=6, local_base=10000.0)
    # The 27B model, recognized by its number of layers, scales scores by width instead of head size.
    if hp.n_layers == 62:
        hp = replace(hp, layers=tuple(replace(x, scale=(hp.width / x.heads) ** -0.5) for x in hp.layers))
    return replace(hp, logit_softcap=keys.number("final_logit_softcapping", 0.0))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_gemma2(p, hp, qk_norm=True)
