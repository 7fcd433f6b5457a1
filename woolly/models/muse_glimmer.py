"""Muse Glimmer: normed embeddings, gated attention, rope only in sliding-window layers, norms around blocks."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Tracer

ARCHITECTURES = ("muse-glimmer",)
_POST_EPS = 1e-8  # epsilon of the norms after attention and MLP; not in files


@dataclass(frozen=True)
class MuseParams:
    """Common parameters, logit scale and logit softcap."""

    common: TransformerParams
    logit_scale: float
    logit_softcap: float


def read(keys: Keys) -> MuseParams:
    """Read the parameters."""
    keys.positive("attention.sliding_window")  # without this key no layer would have rope
    base, known = keys.number("rope.freq_base", 10000.0), ("logit_scale", "final_logit_softcapping")
    hp = read_transformer(keys, "adjacent", knows=known, period=4, local_base=base)
    hp = hp.with_ropes(*(layer.window > 0 for layer in hp.layers))
    return MuseParams(hp, keys.number("logit_scale"), keys.number("final_logit_softcapping", 0.0))


def build(p: Tracer, params: MuseParams) -> None:
    """Build the model."""
    hp, eps = params.common, params.common.eps
    x = p.rms_norm(p.embed("token_embd", width=hp.width), eps=eps)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.gated_attention(p, p.rms_norm(x, "attn_norm", eps=eps), hp, i)
            x = x + p.rms_norm(a, "post_attention_norm", eps=_POST_EPS)
            f = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=eps), hp, i)
            x = x + p.rms_norm(f, "post_ffw_norm", eps=_POST_EPS)
    y = parts.logits(p, x, hp) * params.logit_scale
    p.output(p.softcap(y, params.logit_softcap) if params.logit_softcap else y)
