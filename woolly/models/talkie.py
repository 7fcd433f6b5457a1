"""Talkie: norms without weights, one gain per query head after rope, and the embedding added after every layer."""

from __future__ import annotations

from dataclasses import dataclass

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class TalkieParams:
    """Common parameters and the logit scale."""

    common: TransformerParams
    logit_scale: float


def read(keys: Keys) -> TalkieParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=("logit_scale",))
    return TalkieParams(hp, keys.number("logit_scale"))


def build(p: Tracer, params: TalkieParams) -> None:
    """Build the model. Files have factors for the results of attention and MLP (`attn_output.scale`)."""
    hp, eps = params.common, params.common.eps
    e = x = p.rms_norm(p.embed("token_embd", width=hp.width), eps=eps)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + _attention(p, p.rms_norm(x, eps=eps), hp, i)
            x = x + parts.feed_forward(p, p.rms_norm(x, eps=eps), hp, i)
            x = x + p.mul_weight(e, "layer_output_scale")
    p.output(parts.unembedded(p, p.rms_norm(p.output_rows(x), eps=eps), hp) * params.logit_scale)


def _attention(p: Tracer, h: Handle, hp: TransformerParams, i: int) -> Handle:
    this = hp.layers[i]
    q, k, v = parts.projections(p, h, this)
    q, k = (p.rms_norm(parts.apply_rope(p, x, this), eps=hp.eps, group=this.head_dim) for x in (q, k))
    gains = p.vector("attn_q_norm").weight
    q = p.mul_weight(q, gains, run=q.width // gains.shape[0])  # files have a gain per head or per column
    return p.linear(parts.attend(p, q, k, v, hp, i), "attn_output", width=hp.width)
