"""MiniCPM and its MoE: Granite's scalars, with defaults for files without them."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.granite import GraniteParams, read_logit_scale
from woolly.models.granite import build as build
from woolly.models.params import EXPERT_KEYS, read_experts, read_transformer


def read(keys: Keys) -> GraniteParams:
    """Read the parameters."""
    hp = read_transformer(keys, "adjacent", knows=(*EXPERT_KEYS, "embedding_scale", "residual_scale", "logit_scale"))
    hp = replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn))
    return GraniteParams(
        common=hp,
        embedding_scale=keys.number("embedding_scale", 12.0),
        residual_scale=keys.number("residual_scale", 1.4 * hp.n_layers**-0.5),
        logit_scale=read_logit_scale(keys, hp.width / 256),
    )
