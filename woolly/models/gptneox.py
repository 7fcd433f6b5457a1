"""GPT-NeoX, Pythia, StableLM alpha, Dolly: layer norms, partial rope, attention and MLP in parallel or in sequence."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models.params import TransformerParams, read_transformer
from woolly.models.starcoder2 import build_plain
from woolly.plan import Tracer


@dataclass(frozen=True)
class NeoxParams:
    """Common parameters, and a flag for attention and MLP in parallel."""

    common: TransformerParams
    parallel: bool


def read(keys: Keys) -> NeoxParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=("use_parallel_residual",), norm="layer")
    return NeoxParams(hp, keys.flag("use_parallel_residual", True))


def build(p: Tracer, hp: NeoxParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.common.width)
    build_plain(p, x, hp.common, act="gelu_erf", parallel=hp.parallel)
