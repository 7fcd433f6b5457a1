"""Ling 3: Kimi delta attention with bounded decay, interleaved with gated MLA; MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import (
    EXPERT_KEYS,
    Layer,
    Recurrence,
    TransformerParams,
    check_causal,
    read_experts,
    read_transformer,
)
from woolly.plan import Handle, Tracer

_LIMITS = ("swiglu_clamp_exp", "swiglu_clamp_shexp")


@dataclass(frozen=True)
class BailingMoe3Params:
    """Common parameters, MLA widths, and clamp limits."""

    common: TransformerParams
    latent: parts.Latent
    floor: float  # minimum log decay
    limits: tuple[tuple[float, float], ...]  # per layer: gate limits of routed and shared experts; 0: no limit


def read(keys: Keys) -> BailingMoe3Params:
    """Read the parameters. Layers without KV heads are delta nets."""
    check_causal(keys)
    known = (*EXPERT_KEYS, *_LIMITS, "attention.kv_lora_rank", "nextn_predict_layers")
    hp = read_transformer(keys, "adjacent", knows=known, optional_heads=True)
    latent, heads, head = parts.read_latent(keys, hp.layers[0]), hp.layers[0].heads, keys.positive("kda.head_dim")
    floor = keys.number("kda.gate_lower_bound")
    if not keys.flag("kda.safe_gate", True) or floor >= 0:
        raise UnsupportedError(
            f"{keys.architecture} models need a negative lower bound of the gate; the file has {floor:g} or no bound"
        )
    if hp.recurrent.count(False) == 0:
        raise ModelError("no layer has KV heads")
    kernel = keys.positive("ssm.conv_kernel")
    hp = replace(
        hp,
        layers=tuple(_with_rope(layer, latent) for layer in hp.layers),
        experts=read_experts(keys, normalize=True, scoring="sigmoid"),
        recurrence=Recurrence(kernel=kernel, inner=heads * head, state=head, heads=heads, groups=heads),
    )
    limits = zip(*(_limits(keys, name, hp.n_layers) for name in _LIMITS), strict=True)
    return BailingMoe3Params(hp, latent, floor, tuple(limits))


def _with_rope(layer: Layer, latent: parts.Latent) -> Layer:
    assert layer.rope is not None
    return replace(layer, rope=replace(layer.rope, head_dim=latent.n_rot), scale=latent.k_dim**-0.5)


def _limits(keys: Keys, name: str, n: int) -> tuple[float, ...]:
    limits = keys.numbers(name, n) if keys.has(name) else (0.0,) * n
    if not all(limit >= 0 for limit in limits):
        raise ModelError(f"metadata key {keys.architecture}.{name} has a negative limit")
    return tuple(limit if limit > 1e-6 else 0.0 for limit in limits)


def build(p: Tracer, params: BailingMoe3Params) -> None:
    """Build the model."""
    hp = params.common
    p.skip(*hp.drafts)
    x = p.embed("token_embd", width=hp.width)
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            x = _layer(p, x, params, i, *params.limits[i])
    p.output(parts.logits(p, x, hp))


def build_draft(p: Tracer, params: BailingMoe3Params) -> None:
    """Build the MTP block: a layer with attention, without gate limits."""
    hp = params.common
    like = hp.n_layers - 1 - hp.recurrent[::-1].index(False)
    parts.next_token(p, hp, lambda x: _layer(p, x, params, like, 0.0, 0.0))


def _layer(p: Tracer, x: Handle, params: BailingMoe3Params, i: int, limit: float, shared_limit: float) -> Handle:
    hp = params.common
    h = p.rms_norm(x, "attn_norm", eps=hp.eps)
    if hp.recurrent[i]:
        x = x + parts.kimi_delta_net(p, h, hp, floor=params.floor)
    else:
        x = x + parts.latent_attention(p, h, hp, i, params.latent)
    h = p.rms_norm(x, "ffn_norm", eps=hp.eps)
    return x + parts.experts_or_feed_forward(p, h, hp, i, limit=limit, shared_limit=shared_limit)
