"""Nemotron H and Nemotron 3: each layer is Mamba 2, attention without positions, or a feed-forward network."""

from __future__ import annotations

from dataclasses import replace

from woolly.models import parts
from woolly.models.metadata import Keys
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_recurrence, read_transformer
from woolly.plan import Handle, Tracer

__all__ = ["ARCHITECTURES", "build", "read"]

ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")


def read(keys: Keys) -> TransformerParams:
    """Parameters of the file; a layer without keys and without a feed-forward width is recurrent."""
    knows = (*EXPERT_KEYS, "ssm.state_size", "nextn_predict_layers")
    hp = read_transformer(keys, "halves", knows=knows, optional_heads=True)
    recurrent = tuple(kv and not layer.ffn for kv, layer in zip(hp.recurrent, hp.layers, strict=True))
    experts = read_experts(keys, normalize=True, scoring="sigmoid")
    hp = replace(hp, recurrence=read_recurrence(keys), recurrent=recurrent, experts=experts)
    return hp.with_ropes(*(False for _ in hp.layers))


def build(p: Tracer, hp: TransformerParams) -> None:
    """The whole model."""
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i, layer in enumerate(hp.layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=hp.eps)
            if hp.recurrent[i]:
                x = x + parts.mamba2(p, h, hp)
            elif layer.ffn:
                x = x + _feed_forward(p, h, hp, i)
            else:
                x = x + parts.self_attention(p, h, hp, i)
    p.output(parts.logits(p, x, hp))


def _feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Squared relu without a gate; experts may see a narrower row than their router."""
    if hp.experts is None or not p.has("ffn_gate_inp"):
        return parts.plain_feed_forward(p, h, hp, layer, act="relu2")
    shared = p.act(p.linear(h, "ffn_up_shexp", width=p.rows("ffn_up_shexp")), "relu2")
    shared = p.linear(shared, "ffn_down_shexp", width=hp.width)
    if not p.has("ffn_latent_down"):
        return parts.experts(p, h, hp.experts, act="relu2", gated=False) + shared
    z = p.linear(h, "ffn_latent_down", width=p.rows("ffn_latent_down"))
    y = parts.experts(p, z, hp.experts, act="relu2", gated=False, router_x=h)
    return p.linear(y, "ffn_latent_up", width=hp.width) + shared
