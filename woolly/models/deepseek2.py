"""DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM 5, Mistral 4: MLA, then MoE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import EXPERT_KEYS, MAX_POSITION, TransformerParams, read_experts, read_transformer
from woolly.plan import Handle, Tracer
from woolly.plan.exact_math import exact_log
from woolly.plan.rope_scaling import RopeStyle

ARCHITECTURES = ("deepseek2", "deepseek32", "glm-dsa", "mistral4")
_INDEXED = ("deepseek32", "glm-dsa")
_KNOWN = ("attention.kv_lora_rank", "attention.temperature_scale", "attention.temperature_length")


@dataclass(frozen=True)
class DeepseekParams:
    """Common parameters and MLA widths."""

    common: TransformerParams
    latent: parts.Latent
    index: parts.Index | None = None  # sparse attention index


def read(keys: Keys) -> DeepseekParams:
    """Read the parameters. If the file has YaRN's key, YaRN scales attention scores instead of the rotated part."""
    yarn = "rope.scaling.yarn_log_multiplier"
    hp = read_transformer(keys, "adjacent", knows=(*EXPERT_KEYS, *_KNOWN, yarn, "nextn_predict_layers"))
    latent = parts.read_latent(keys, hp.layers[0])
    rope, scale = hp.layers[0].rope, latent.k_dim**-0.5
    assert rope is not None
    rope = replace(rope, head_dim=latent.n_rot)
    if keys.is_set(yarn) and rope.log_multiplier and rope.factor > 1.0:
        multiplier = rope.log_multiplier / 0.1  # converters multiply it by 0.1 for this family
        scale *= (1.0 + 0.1 * multiplier * exact_log(rope.factor)) ** 2
        # In published files, numerator and denominator of YaRN's magnitude are equal.
        rope = replace(rope, log_multiplier=1.0)
    # GLM-4.7-Flash uses sigmoid routing, but its first files have no key for it, so it is recognized by size. GLM 5
    # always uses sigmoid routing.
    is_glm = hp.n_layers in (47, 48) and keys.integer("vocab_size", 0) == 154880
    is_glm = is_glm or keys.architecture == "glm-dsa"
    experts = read_experts(keys, normalize=False, scoring="sigmoid" if is_glm else "softmax")
    if experts is not None and experts.scoring == "softmax" and keys.architecture == "deepseek2":
        experts = replace(experts, group_top=1)  # V2 scores a group by its best expert, other models by the best two
    length = keys.positive("attention.temperature_length", max(1, rope.original_context))
    layers = tuple(replace(layer, rope=rope, scale=scale) for layer in hp.layers)
    temper = keys.number("attention.temperature_scale", 0.0)
    hp = replace(hp, layers=layers, experts=experts, temper=temper, temper_length=min(length, MAX_POSITION))
    # In V3.2 only the index uses NeoX pairs.
    style: RopeStyle = "neox" if keys.architecture == "deepseek32" else "adjacent"
    is_indexed = keys.architecture in _INDEXED or keys.is_set("attention.indexer.top_k")
    return DeepseekParams(hp, latent, parts.read_index(keys, rope, style, hp.n_layers) if is_indexed else None)


def build(p: Tracer, hp: DeepseekParams) -> None:
    """Build the model."""
    common = hp.common
    p.skip(*common.drafts)
    x = p.embed("token_embd", width=common.width)
    chosen: list[Handle] = []
    for i in range(common.n_layers):
        with p.scope(f"blk.{i}"):
            x = _layer(p, x, hp, i, chosen)
    p.output(parts.logits(p, x, common))


def build_draft(p: Tracer, hp: DeepseekParams) -> None:
    """Build the MTP block: one more layer."""
    parts.next_token(p, hp.common, lambda x: _layer(p, x, hp, None, []))


def _layer(p: Tracer, x: Handle, hp: DeepseekParams, i: int | None, chosen: list[Handle]) -> Handle:
    """Build a layer, or the MTP block if `i` is None. Layers without an index reuse an earlier layer's selection."""
    common, index, like = hp.common, hp.index, hp.common.n_layers - 1 if i is None else i

    def indexer(h: Handle, low: Handle) -> Handle | None:
        if index is not None and index.is_own(p, i):
            chosen.append(parts.indexed(p, h, low, index))
        else:
            p.skip("indexer")
        return chosen[-1] if chosen else None

    x = x + parts.latent_attention(p, p.rms_norm(x, "attn_norm", eps=common.eps), common, like, hp.latent, indexer)
    return x + parts.experts_or_feed_forward(p, p.rms_norm(x, "ffn_norm", eps=common.eps), common, like)
