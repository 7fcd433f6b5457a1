"""Granite 3: Llama with four scalars (embedding, residual, attention, logits)."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import ModelError, UnsupportedError
from woolly.models import blocks
from woolly.models.params import Keys, TransformerParams, read_transformer
from woolly.plan import Tracer

__all__ = ["GraniteParams", "build", "read"]


@dataclass(frozen=True)
class GraniteParams:
    """The common parameters and the scalars; attention's is in `common.scale`."""

    common: TransformerParams
    embedding_scale: float
    residual_scale: float
    logit_scale: float  # logits are divided by it


def read(keys: Keys) -> GraniteParams:
    """Parameters of the file."""
    if not keys.flag("rope.scaling.finetuned", True):
        raise UnsupportedError("granite models without rotary positions are not supported yet")
    logit_scale = keys.number("logit_scale")
    if logit_scale == 0:
        raise ModelError("metadata key granite.logit_scale is 0, but logits are divided by it")
    return GraniteParams(
        common=read_transformer(keys, "adjacent", scalars=True),
        embedding_scale=keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logit_scale=logit_scale,
    )


def build(p: Tracer, hp: GraniteParams) -> None:
    """The whole model."""
    eps = hp.common.eps
    x = p.embed("token_embd", width=hp.common.width) * hp.embedding_scale
    for i in range(hp.common.n_layers):
        with p.scope(f"blk.{i}"):
            a = blocks.self_attention(p, p.rms_norm(x, "attn_norm", eps=eps), hp.common, i)
            x = x + a * hp.residual_scale
            f = blocks.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=eps), hp.common)
            x = x + f * hp.residual_scale
    p.output(blocks.logits(p, x, hp.common) * (1.0 / hp.logit_scale))
