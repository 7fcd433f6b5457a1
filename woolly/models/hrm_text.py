"""HRM-Text: a low and a high stack of layers in nested cycles, each pass with separate K and V; no norm weights."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class HrmParams:
    """Common parameters, layers per stack, and cycles."""

    common: TransformerParams
    embedding_scale: float
    stack: int  # layers per stack; the low stack comes first
    high: int  # cycles of the high stack
    low: int  # cycles of the low stack in each cycle of the high stack


def read(keys: Keys) -> HrmParams:
    """Read the parameters. The file's block count is the number of passes of layers."""
    hp = read_transformer(keys, "neox", knows=("embedding_scale",))
    stack, high, low = (keys.positive(f"hrm.{name}") for name in ("layers_per_stack", "h_cycles", "l_cycles"))
    if stack * high * (low + 1) != hp.n_layers:
        raise ModelError(
            f"metadata key {keys.architecture}.block_count is {hp.n_layers}; expected {stack * high * (low + 1)}, the"
            " layers of all cycles"
        )
    return HrmParams(hp, keys.number("embedding_scale", 1.0), stack, high, low)


def build(p: Tracer, params: HrmParams) -> None:
    """Build the model."""
    hp = params.common
    high = p.embed("token_embd", width=hp.width) * params.embedding_scale
    low: Handle | None = None
    for _ in range(params.high):
        for _ in range(params.low):
            low = _stack(p, high + (p.vector("hrm_z_l_init") if low is None else low), params, 0)
        assert low is not None
        high = _stack(p, high + low, params, params.stack)
    p.output(parts.unembedded(p, p.output_rows(high), hp))


def _stack(p: Tracer, x: Handle, params: HrmParams, first: int) -> Handle:
    """Build one pass over a stack, with gated attention."""
    hp, eps = params.common, params.common.eps
    for i in range(params.stack):
        with p.scope(f"blk.{first + i}"):
            x = x + parts.gated_attention(p, p.rms_norm(x, eps=eps), hp, i, optional=True)
            x = x + parts.feed_forward(p, p.rms_norm(x, eps=eps), hp, i)
    return p.rms_norm(x, eps=eps)
