"""Nanbeige 4.2: Llama whose layers run several times, each time with separate K and V."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

_MAX_LOOPS = 64


@dataclass(frozen=True)
class NanbeigeParams:
    """Common parameters, and the passes over the layers."""

    common: TransformerParams
    n_loops: int
    norms_between: bool  # the last norm is also applied between two passes


def read(keys: Keys) -> NanbeigeParams:
    """Read the parameters."""
    hp, n_loops = read_transformer(keys, "adjacent", knows=("num_loops",)), keys.integer("num_loops", 1)
    if not 1 <= n_loops <= _MAX_LOOPS:
        raise ModelError(
            f"metadata key {keys.architecture}.num_loops is {n_loops}; expected an integer from 1 to {_MAX_LOOPS}"
        )
    return NanbeigeParams(hp, n_loops, not keys.flag("skip_loop_final_norm", False))


def build(p: Tracer, params: NanbeigeParams) -> None:
    """Build the model."""
    hp = params.common
    x = p.embed("token_embd", width=hp.width)
    for loop in range(params.n_loops):
        if loop and params.norms_between:
            x = p.rms_norm(x, "output_norm", eps=hp.eps)
        for i in range(hp.n_layers):
            with p.scope(f"blk.{i}"):
                x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
                x = x + parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    p.output(parts.logits(p, x, hp))
