"""MiMo V2: separate heads, rope and sinks in sliding-window layers; small V heads; sigmoid-routed MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, like_draft, read_experts, read_transformer
from woolly.plan import Handle, Tracer


@dataclass(frozen=True)
class Mimo2Params:
    """Common parameters and scale of V."""

    common: TransformerParams
    value_scale: float
    draft: int  # layer with the same shape as the MTP block


def read(keys: Keys) -> Mimo2Params:
    """Read the parameters."""
    known = (*EXPERT_KEYS, "attention.value_scale", "nextn_predict_layers")
    hp = read_transformer(keys, "neox", knows=known, period=6, local_base=10000.0)
    hp = replace(hp, experts=read_experts(keys, normalize=True, scoring="sigmoid"))
    return Mimo2Params(hp, keys.number("attention.value_scale", 1.0) or 1.0, like_draft(keys, hp))


def build(p: Tracer, params: Mimo2Params) -> None:
    """Build the model."""
    hp = params.common
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = _layer(p, x, params, i)
    p.output(parts.logits(p, x, hp))


def build_draft(p: Tracer, params: Mimo2Params) -> None:
    """Build the first MTP block: one more sliding-window layer."""
    parts.next_token(p, params.common, lambda x: _layer(p, x, params, params.draft), is_normed=False)


def _layer(p: Tracer, x: Handle, params: Mimo2Params, i: int) -> Handle:
    hp = params.common
    a = parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp, i)
    x = x + (a * params.value_scale if params.value_scale != 1.0 else a)
    return x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
