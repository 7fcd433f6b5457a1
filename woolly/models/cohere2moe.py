"""North, Cohere's mixture: Cohere 2 with experts after dense layers, averaged with what all rows share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from woolly.models import parts
from woolly.models.metadata import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


@dataclass(frozen=True)
class Cohere2MoeParams:
    """The common parameters, the factor of the logits, and whether norms keep the mean."""

    common: TransformerParams
    logit_scale: float
    rms: bool


def read(keys: Keys) -> Cohere2MoeParams:
    """Parameters of the file. Layers turn under windows; dense ones turn always. The epsilon tells the kind of norm."""
    rms, known = keys.is_set("attention.layer_norm_rms_epsilon"), (*EXPERT_KEYS, "logit_scale", "nextn_predict_layers")
    keys.positive("attention.sliding_window")  # without it hardly a layer would turn
    hp = read_transformer(keys, "adjacent", knows=known, norm="rms" if rms else "layer", period=4, dense_first=True)
    n_dense = keys.integer("leading_dense_block_count", 0)
    hp = hp.with_ropes(*(layer.window > 0 or i < n_dense for i, layer in enumerate(hp.layers)))
    experts = read_experts(keys, normalize=False, scoring="sigmoid")
    return Cohere2MoeParams(replace(hp, experts=experts), keys.number("logit_scale", 1.0), rms)


def build(p: Tracer, params: Cohere2MoeParams) -> None:
    """The whole model: attention and experts side by side."""
    hp = params.common
    norm = partial(p.rms_norm if params.rms else p.layer_norm, eps=hp.eps)
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            h = norm(x, "attn_norm")
            f = parts.experts_or_feed_forward(p, h, hp, i)
            x = x + parts.self_attention(p, h, hp, i) + (f * 0.5 if p.has("ffn_up_shexp") else f)
    p.output(parts.unembedded(p, norm(p.output_rows(x), "output_norm"), hp) * params.logit_scale)
