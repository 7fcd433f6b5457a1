"""GroveMoE: Qwen 3 MoE in which each group of experts shares a small adjugate expert."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, Experts, TransformerParams, read_experts, read_transformer
from woolly.plan import Tracer


@dataclass(frozen=True)
class GroveParams:
    """Common parameters, experts, and the adjugate experts of groups."""

    common: TransformerParams
    experts: Experts
    each: int  # experts per group
    ffn: int  # width of an adjugate expert
    scale: float  # scale of the adjugate experts' output


def read(keys: Keys) -> GroveParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", knows=EXPERT_KEYS)
    experts, each = read_experts(keys, normalize=True), keys.positive("experts_per_group")
    if experts is None or experts.count % each:
        raise ModelError(f"the number of experts must be a multiple of the group size {each}")
    ffn = keys.positive("expert_chunk_feed_forward_length", hp.layers[0].head_dim)
    return GroveParams(replace(hp, experts=experts), experts, each, ffn, keys.number("expert_group_scale"))


def build(p: Tracer, hp: GroveParams) -> None:
    """Build the model. The weight of an adjugate expert is the sum of the weights of its group's selected experts."""
    common, mixture = hp.common, hp.experts
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            x = x + parts.self_attention(p, p.rms_norm(x, "attn_norm", eps=common.eps), common, i, qk_norm=True)
            h = p.rms_norm(x, "ffn_norm", eps=common.eps)
            small = p.moe(
                h,
                "ffn_gate_inp",
                *("ffn_gate_chexps", "ffn_up_chexps", "ffn_down_chexps"),
                n_experts=mixture.count,
                ffn=hp.ffn,
                n_used=mixture.used,
                scoring=mixture.scoring,
                normalize=mixture.normalize,
                weights_scale=mixture.scale,
                shared=hp.each,
            )
            x = x + parts.experts(p, h, mixture) + small * hp.scale
    p.output(parts.logits(p, x, common))
