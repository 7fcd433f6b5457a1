"""MiniMax 01: lightning attention, softmax attention in every eighth layer. The residual is the scaled normed input."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, check_causal, read_experts, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("minimax-01",)


@dataclass(frozen=True)
class MiniMaxParams:
    """Common parameters and residual scale."""

    common: TransformerParams
    residual_scale: float


def read(keys: Keys) -> MiniMaxParams:
    """Read the parameters."""
    check_causal(keys)
    hp = read_transformer(keys, "neox", knows=(*EXPERT_KEYS, "residual_scale"))
    period = keys.positive("full_attention_interval", 8)
    recurrent = keys.pattern("attention.recurrent_layers", hp.n_layers, period)
    hp = replace(hp, recurrent=recurrent, experts=read_experts(keys, normalize=True, ffn=hp.ffn))
    return MiniMaxParams(hp, keys.number("residual_scale"))


def build(p: Tracer, hp: MiniMaxParams) -> None:
    """Build the model."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=common.eps)
            a = _lightning(p, h, common, i) if common.recurrent[i] else parts.self_attention(p, h, common, i)
            h = p.rms_norm(h * hp.residual_scale + a, "ffn_norm", eps=common.eps)
            x = h * hp.residual_scale + parts.experts_or_feed_forward(p, h, common, i)
    p.output(parts.logits(p, x, common))


def _lightning(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    """Build lightning attention. The decay rate differs per head and is slower in later layers."""
    heads, d = hp.layers[layer].heads, hp.layers[layer].head_dim
    qkv = p.unary(p.linear(h, "attn_qkv", width=3 * heads * d), "silu")
    q, k, v = p.split(qkv, d, d, d, groups=heads)
    o = p.lightning_attention(q, k, v, head=d, slope=1.0 - layer / max(1, hp.n_layers - 1) + 1e-5)
    gate = p.unary(p.linear(h, "attn_gate", width=heads * d), "sigmoid")
    return p.linear(p.rms_norm(o, "attn_norm_2", eps=hp.eps) * gate, "attn_output", width=hp.width)
