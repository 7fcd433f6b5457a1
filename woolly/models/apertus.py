"""Apertus: QK norm per head, and an MLP with xIELU, whose parameters differ per layer, and no gate."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer
from woolly.plan.exact_math import exact_softplus


@dataclass(frozen=True)
class ApertusParams:
    """Common parameters, and four xIELU parameters per layer."""

    common: TransformerParams
    xielu: tuple[tuple[float, ...], ...]


def read(keys: Keys) -> ApertusParams:
    """Read the parameters. The file has both alphas before the softplus."""
    hp = read_transformer(keys, "neox")
    names = ("alpha_p", "alpha_n", "beta", "eps")
    columns = [keys.shared_numbers(f"xielu.{name}", hp.n_layers) for name in names]
    rows = [
        (exact_softplus(alpha_p), beta + exact_softplus(alpha_n), beta, eps)
        for alpha_p, alpha_n, beta, eps in zip(*columns, strict=True)
    ]
    return ApertusParams(hp, tuple(rows))


def build(p: Tracer, hp: ApertusParams) -> None:
    """Build the model."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i, (alpha_p, alpha_n, beta, eps) in enumerate(hp.xielu):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=common.eps)
            x = x + parts.self_attention(p, h, common, i, qk_norm=True)
            up = p.linear(p.rms_norm(x, "ffn_norm", eps=common.eps), "ffn_up", width=common.layers[i].ffn)
            f = p.xielu(up, alpha_p=alpha_p, alpha_n=alpha_n, beta=beta, eps=eps)
            x = x + p.linear(f, "ffn_down", width=common.width)
    parts.read_out(p, x, common)
