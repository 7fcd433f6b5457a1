"""Gemma 4: separate heads in sliding-window layers, V normed or equal to K, MoE parallel to MLP, layer embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, Experts, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Injection, Tracer

_KNOWN = ("final_logit_softcapping", "attention.shared_kv_layers", "embedding_length_per_layer_input")


@dataclass(frozen=True)
class Gemma4Params:
    """Common parameters and the width of per-layer embeddings."""

    common: TransformerParams
    extra: int  # 0: no per-layer embeddings


def read(keys: Keys) -> Gemma4Params:
    """Read the parameters. Scores are not scaled; only global layers have rope frequency factors."""
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, *_KNOWN), period=6, local_base=10000.0)
    layers = tuple(replace(x, scale=1.0, divisors=None if x.window else "") for x in hp.layers)
    softcap = keys.number("final_logit_softcapping", 30.0)
    common = replace(hp, layers=layers, logit_softcap=softcap, experts=read_experts(keys, normalize=True))
    extra = keys.integer("embedding_length_per_layer_input", 0)
    if extra < 0:
        raise ModelError(f"the width of per-layer embeddings is {extra}; it must be 0 or more")
    return Gemma4Params(common.sharing(keys.integer("attention.shared_kv_layers", 0)), extra)


def build(p: Tracer, hp: Gemma4Params) -> None:
    """Build the model."""
    common, eps = hp.common, hp.common.eps
    x = p.embed("token_embd", width=common.width) * common.width**0.5
    inputs = parts.layer_inputs(p, x, common, hp.extra) if hp.extra else None
    kept: dict[bool, Handle] = {}
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.shared_attention(p, p.rms_norm(x, "attn_norm", eps=eps), common, i, kept)
            a = p.linear(a, "attn_output", width=common.width)
            x = x + p.rms_norm(a, "post_attention_norm", eps=eps)
            f = parts.feed_forward(p, p.rms_norm(x, "ffn_norm", eps=eps), common, i, act="gelu")
            if common.experts is not None and p.has("ffn_gate_inp"):
                m = p.rms_norm(_experts(p, x, common.experts, eps), "post_ffw_norm_2", eps=eps)
                f = p.rms_norm(f, "post_ffw_norm_1", eps=eps) + m
            x = x + p.rms_norm(f, "post_ffw_norm", eps=eps)
            x = x + parts.gated_input(p, x, inputs, common, i) if inputs is not None else x
            x = p.mul_weight(x, "layer_output_scale") if p.has("layer_output_scale") else x
    parts.read_out(p, x, common)


def injection(hp: Gemma4Params) -> Injection:
    """Image rows attend to each other in sliding-window layers, except in models with per-layer embeddings."""
    return Injection(causal="all layers" if hp.extra else "global layers")


def _experts(p: Tracer, x: Handle, mixture: Experts, eps: float) -> Handle:
    """Build the experts. The router has a separate norm."""
    router_x = p.rms_norm(x, "ffn_gate_inp.scale", eps=eps) * x.width**-0.5
    return parts.experts(p, p.rms_norm(x, "pre_ffw_norm_2", eps=eps), mixture, act="gelu", router_x=router_x)
