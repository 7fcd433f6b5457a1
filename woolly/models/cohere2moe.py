"""North, Cohere's MoE: Cohere 2 with dense layers before MoE layers; routed and shared experts are averaged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


@dataclass(frozen=True)
class Cohere2MoeParams:
    """Common parameters, logit scale and kind of norm."""

    common: TransformerParams
    logit_scale: float
    rms: bool


def read(keys: Keys) -> Cohere2MoeParams:
    """Read the parameters. Sliding-window and dense layers have rope. The epsilon's key determines the kind of norm."""
    rms, known = keys.is_set("attention.layer_norm_rms_epsilon"), (*EXPERT_KEYS, "logit_scale", "nextn_predict_layers")
    keys.positive("attention.sliding_window")  # without this key most layers would have no rope
    hp = read_transformer(keys, "adjacent", knows=known, norm="rms" if rms else "layer", period=4, dense_first=True)
    n_dense = keys.integer("leading_dense_block_count", 0)
    hp = hp.with_ropes(*(layer.window > 0 or i < n_dense for i, layer in enumerate(hp.layers)))
    experts = read_experts(keys, normalize=False, scoring="sigmoid")
    return Cohere2MoeParams(replace(hp, experts=experts), keys.number("logit_scale", 1.0), rms)


def build(p: Tracer, params: Cohere2MoeParams) -> None:
    """Build the model: attention and experts in parallel."""
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
