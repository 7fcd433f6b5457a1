"""MiniCPM: Granite's scalars, with values of its own for files that do not carry them."""

from __future__ import annotations

from woolly.models.granite import GraniteParams, build, read_logit_scale
from woolly.models.metadata import Keys
from woolly.models.params import read_transformer

__all__ = ["build", "read"]


def read(keys: Keys) -> GraniteParams:
    """Parameters of the file."""
    hp = read_transformer(keys, "adjacent", knows=("embedding_scale", "residual_scale", "logit_scale"))
    return GraniteParams(
        common=hp,
        embedding_scale=keys.number("embedding_scale", 12.0),
        residual_scale=keys.number("residual_scale", 1.4 * hp.n_layers**-0.5),
        logit_scale=read_logit_scale(keys, hp.width / 256),
    )
