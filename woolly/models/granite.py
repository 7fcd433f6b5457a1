"""Granite 3 and 4: Llama with four scalars (embedding, residual, attention, logits), MoE, and Mamba 2 layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, TransformerParams, read_experts, read_recurrence, read_transformer
from woolly.plan import Injection, Tracer

ARCHITECTURES = ("granite", "granitehybrid", "granitemoe")


@dataclass(frozen=True)
class GraniteParams:
    """Common parameters and scalars. The attention scalar is part of the layers."""

    common: TransformerParams
    embedding_scale: float
    residual_scale: float
    logit_scale: float  # divisor of the logits
    deepstack: tuple[int, ...] = ()  # part of an image row that is added to the input of each layer; -1: none


def read(keys: Keys) -> GraniteParams:
    """Read the parameters."""
    return read_granite(keys)


def read_granite(keys: Keys, period: int | None = None) -> GraniteParams:
    """Read the parameters, with a sliding-window pattern if `period` is set."""
    hybrid = keys.architecture == "granitehybrid"
    knows = (*EXPERT_KEYS, "embedding_scale", "residual_scale", "logit_scale", *(("ssm.state_size",) if hybrid else ()))
    hp = read_transformer(keys, "adjacent", knows=knows, optional_heads=hybrid, period=period)
    hp = replace(hp, recurrence=read_recurrence(keys)) if hybrid else hp
    hp = hp.with_ropes(*(keys.flag("rope.scaling.finetuned", True) for _ in hp.layers))
    return GraniteParams(
        common=replace(hp, experts=read_experts(keys, normalize=True, ffn=hp.ffn)),
        embedding_scale=keys.number("embedding_scale", 1.0),
        residual_scale=keys.number("residual_scale", 1.0),
        logit_scale=read_logit_scale(keys),
        deepstack=_read_deepstack(keys, hp.n_layers),
    )


def _read_deepstack(keys: Keys, n_layers: int) -> tuple[int, ...]:
    """Return the part of image rows for each layer, empty if the file has none. The first is the row itself."""
    if not keys.has("deepstack_mapping"):
        return ()
    parts_of_layers = keys.whole_numbers("deepstack_mapping")
    used = {part for part in parts_of_layers[1:] if part >= 0}
    if len(parts_of_layers) != n_layers or parts_of_layers[0] > 0 or used != set(range(1, len(used) + 1)):
        raise ModelError(
            f"metadata key {keys.architecture}.deepstack_mapping is {list(parts_of_layers)!r:.60}; expected {n_layers}"
            " integers: 0 or -1, then -1 or a part of image rows, from 1"
        )
    return parts_of_layers


def read_logit_scale(keys: Keys, default: float | None = None) -> float:
    """Return the divisor of the logits."""
    scale = keys.number("logit_scale", default)
    if scale == 0:
        raise ModelError(f"metadata key {keys.architecture}.logit_scale is 0, but logits are divided by it")
    return scale


def injection(hp: GraniteParams) -> Injection:
    """Image rows are scaled like token embeddings, unless parts of them are added to layers."""
    return Injection(is_scaled=not hp.deepstack, layers=hp.deepstack)


def build(p: Tracer, hp: GraniteParams) -> None:
    """Build the model. HyperCLOVA X also has norms after the blocks."""
    common = hp.common
    x = p.embed("token_embd", width=common.width) * hp.embedding_scale
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            h = p.rms_norm(x, "attn_norm", eps=common.eps)
            a = parts.mamba2(p, h, common) if common.recurrent[i] else parts.self_attention(p, h, common, i)
            a = p.rms_norm(a, "post_attention_norm", eps=common.eps) if p.has("post_attention_norm") else a
            x = x + a * hp.residual_scale
            f = parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, i)
            f = p.rms_norm(f, "post_ffw_norm", eps=common.eps) if p.has("post_ffw_norm") else f
            x = x + f * hp.residual_scale
    p.output(parts.logits(p, x, common) * (1.0 / hp.logit_scale))
