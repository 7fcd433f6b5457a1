"""Mamba, Falcon Mamba and Mamba 2: recurrent layers only."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_recurrence, read_recurrent
from woolly.plan import Tracer

ARCHITECTURES = ("mamba", "mamba2")


@dataclass(frozen=True)
class MambaParams:
    """Common parameters and Mamba version."""

    common: TransformerParams
    second: bool
    mixer_eps: float | None  # epsilon of Falcon Mamba's weightless norms of dt, B and C; None: no norms


def read(keys: Keys) -> MambaParams:
    """Read the parameters."""
    hp = read_recurrent(keys, recurrence=read_recurrence(keys))
    eps = keys.number("ssm.dt_b_c_rms_epsilon", hp.eps)
    is_falcon = keys.flag("ssm.dt_b_c_rms", False)
    return MambaParams(hp, keys.architecture == "mamba2", eps if is_falcon else None)


def build(p: Tracer, hp: MambaParams) -> None:
    """Build the model."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=common.eps)
            x = x + (parts.mamba2(p, h, common) if hp.second else parts.mamba(p, h, common, mixer_eps=hp.mixer_eps))
    p.output(parts.logits(p, x, common))
