"""Nomic Embed: BERT with rope and SwiGLU; version 2 has MoE in some layers."""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("nomic-bert", "nomic-bert-moe")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Layers with experts are recognized by their tensors."""
    hp = read_transformer(keys, "neox", norm="layer", causal=False, knows=EXPERT_KEYS)
    experts = read_experts(keys, normalize=False, ffn=hp.ffn)
    return replace(hp, experts=experts, separator=keys.token("seperator_token_id", 102))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.layer_norm(parts.typed(p, p.embed("token_embd", width=hp.width), hp), "token_embd_norm", eps=hp.eps)
    parts.embeddings(p, parts.post_norm_layers(p, x, hp, _feed_forward))


def _feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build SwiGLU, or experts or an MLP without a gate."""
    if hp.experts is not None and p.has("ffn_gate_inp"):
        return p.moe(
            h,
            "ffn_gate_inp",
            None,
            "ffn_up_exps",
            "ffn_down_exps",
            n_experts=hp.experts.count,
            ffn=hp.experts.ffn,
            n_used=hp.experts.used,
            normalize=hp.experts.normalize,
            weights_scale=hp.experts.scale,
            act="gelu_erf",
        )
    if p.has("ffn_gate"):
        return parts.feed_forward(p, h, hp, layer)
    return parts.plain_feed_forward(p, h, hp, layer, act="gelu_erf")
