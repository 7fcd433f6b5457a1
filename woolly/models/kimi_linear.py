"""Kimi Linear: Kimi delta attention, interleaved with MLA without rope; MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import (
    EXPERT_KEYS,
    Recurrence,
    TransformerParams,
    check_causal,
    read_experts,
    read_transformer,
)
from woolly.plan import Tracer

ARCHITECTURES = ("kimi-linear",)


@dataclass(frozen=True)
class KimiLinearParams:
    """Common parameters and MLA widths."""

    common: TransformerParams
    latent: parts.Latent


def read(keys: Keys) -> KimiLinearParams:
    """Read the parameters. Layers without KV heads are delta nets."""
    check_causal(keys)
    hp = read_transformer(keys, "adjacent", knows=(*EXPERT_KEYS, "attention.kv_lora_rank"), optional_heads=True)
    latent, heads, head = parts.read_latent(keys, hp.layers[0]), hp.layers[0].heads, keys.positive("kda.head_dim")
    kernel = keys.positive("ssm.conv_kernel")
    hp = replace(
        hp,
        layers=tuple(replace(layer, rope=None, scale=latent.k_dim**-0.5) for layer in hp.layers),
        experts=read_experts(keys, normalize=True, scoring="sigmoid"),
        recurrence=Recurrence(kernel=kernel, inner=heads * head, state=head, heads=heads, groups=heads),
    )
    return KimiLinearParams(hp, latent)


def build(p: Tracer, hp: KimiLinearParams) -> None:
    """Build the model."""
    common = hp.common
    x = p.embed("token_embd", width=common.width)
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=common.eps)
            x = x + (
                parts.kimi_delta_net(p, h, common)
                if common.recurrent[i]
                else parts.latent_attention(p, h, common, i, hp.latent)
            )
            x = x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, i)
    p.output(parts.logits(p, x, common))
