"""Hunyuan dense, MoE and VL, Maincoder: QK norm per head after rope."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer
from woolly.plan.exact_math import exact_power
from woolly.plan.rope_scaling import RopeStyle

ARCHITECTURES = ("hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "maincoder")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters. Alpha scales the rope base. Text has the same M-RoPE position on all axes."""
    style: RopeStyle = "adjacent" if keys.architecture == "maincoder" else "neox"
    known = (*EXPERT_KEYS, "rope.scaling.alpha", "rope.dimension_sections")
    hp = read_transformer(keys, style, knows=known)
    if alpha := keys.number("rope.scaling.alpha", 0.0):
        d = hp.layers[0].head_dim
        if alpha < 0 or d <= 2:
            raise ModelError(
                f"rope alpha is {alpha:g} and the head size is {d}; expected a positive alpha and larger heads"
            )
        ropes = [x.rope and replace(x.rope, base=x.rope.base * exact_power(alpha, d / (d - 2))) for x in hp.layers]
        hp = replace(hp, layers=tuple(replace(x, rope=rope) for x, rope in zip(hp.layers, ropes, strict=True)))
    return replace(hp, experts=read_experts(keys, normalize=True))


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            q, k, v = parts.projections(p, p.rms_norm(x, "attn_norm", eps=hp.eps), hp.layers[i])
            q, k = (parts.apply_rope(p, y, hp.layers[i]) for y in (q, k))
            q, k = p.rms_norm(q, "attn_q_norm", eps=hp.eps), p.rms_norm(k, "attn_k_norm", eps=hp.eps)
            x = x + p.linear(parts.attend(p, q, k, v, hp, i), "attn_output", width=hp.width)
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=hp.eps), hp, i)
    parts.read_out(p, x, hp)
