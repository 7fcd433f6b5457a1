"""GPT-NeoX, Pythia, StableLM alpha, Dolly: layer norms, a part of each head turns, both parts side by side or not."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams, read_transformer
from woolly.models.starcoder2 import build_plain
from woolly.plan import Tracer


@dataclass(frozen=True)
class NeoxParams:
    """The common parameters, and whether attention and feed-forward network read the same rows."""

    common: TransformerParams
    parallel: bool


def read(keys: Keys) -> NeoxParams:
    """Parameters of the file."""
    hp = read_transformer(keys, "neox", knows=("use_parallel_residual",), norm="layer")
    return NeoxParams(hp, keys.flag("use_parallel_residual", True))


def build(p: Tracer, hp: NeoxParams) -> None:
    """The whole model."""
    x = p.embed("token_embd", width=hp.common.width)
    build_plain(p, x, hp.common, act="gelu_erf", parallel=hp.parallel)
