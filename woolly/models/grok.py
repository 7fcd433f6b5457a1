"""Grok 1 and 2: GeGLU experts, norms before and after both blocks, softcaps of scores and logits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, Experts, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer

_KNOWN = (
    *("attn_logit_softcapping", "router_logit_softcapping", "final_logit_softcapping"),
    *("embedding_scale", "logit_scale", "attention.temperature_length"),
)


@dataclass(frozen=True)
class GrokParams:
    """Common parameters, experts, and two scalars whose defaults are those of Grok 1."""

    common: TransformerParams
    experts: Experts
    embedding_scale: float
    logit_scale: float  # factor of the logits


def read(keys: Keys) -> GrokParams:
    """Read the parameters. Without a softcap key, router logits are not capped, as in Grok 1."""
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, *_KNOWN))
    if keys.is_set("attention.temperature_length"):
        length = keys.positive("attention.temperature_length")
        keys.bound_context(
            length,
            f"grok's scores grow beyond position {length}, which is not supported yet; open the model with a context of"
            f" at most {length}",
        )
    experts = read_experts(keys, normalize=True, ffn=hp.ffn)
    if experts is None:
        raise ModelError("the grok file has no experts, so it is incomplete")
    scale = keys.number("attention.output_scale", 0.08838834764831845)
    layers = tuple(replace(layer, scale=scale) for layer in hp.layers)
    if not keys.has("rope.scaling.yarn_beta_fast"):
        layers = tuple(replace(x, rope=replace(x.rope, beta_fast=8.0)) if x.rope else x for x in layers)
    return GrokParams(
        replace(
            hp,
            layers=layers,
            softcap=max(0.0, keys.number("attn_logit_softcapping", 30.0)),
            logit_softcap=max(0.0, keys.number("final_logit_softcapping", 0.0)),
        ),
        replace(experts, cap=max(0.0, keys.number("router_logit_softcapping", 0.0))),
        keys.number("embedding_scale", 78.38367176906169),
        keys.number("logit_scale", 0.5773502691896257),
    )


def build(p: Tracer, hp: GrokParams) -> None:
    """Build the model. In Grok 2, which is recognized by its dense MLP, the MLP runs in parallel with the experts."""
    common = hp.common
    x = p.embed("token_embd", width=common.width) * hp.embedding_scale
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=common.eps), common, i)
            x = x + p.rms_norm(a, "attn_output_norm", eps=common.eps)
            h = p.rms_norm(x, "ffn_norm", eps=common.eps)
            y = parts.experts(p, h, hp.experts, act="gelu")
            if p.has("ffn_up"):
                y = (y + parts.feed_forward(p, h, common, i, act="gelu")) * 0.5**0.5
            last = "layer_output_norm" if p.has("layer_output_norm") else "post_ffw_norm"
            x = x + p.rms_norm(y, last, eps=common.eps)
    h = p.rms_norm(p.output_rows(x), "output_norm", eps=common.eps)
    y = parts.unembedded(p, h, replace(common, logit_softcap=0.0)) * hp.logit_scale
    p.output(p.softcap(y, common.logit_softcap) if common.logit_softcap else y)
