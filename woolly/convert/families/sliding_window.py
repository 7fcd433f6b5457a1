"""Models whose sliding-window layers have separate heads, gates or rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.config_ledger import Allowed
from woolly.convert.families.decoders import POST_ATTENTION
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import dense_first, expert_keys, layer_kinds, transformer_keys, window_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of, rope_tensors
from woolly.convert.tensor_ops import PLUS_ONE, TensorOp

Keys = dict[str, Any]


def _laguna(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for sliding-window layers, which may have other heads and rope."""
    c.reject("moe_router_logit_softcapping")
    c.reject("moe_apply_router_weight_on_input")
    head, n = keys["attention.key_length"], c.n_layers
    experts = expert_keys(c, scoring="sigmoid", normalize=True)
    experts["expert_weights_scale"] = c.number("moe_routed_scaling_factor", default=1.0)
    inner = c.positive("shared_expert_intermediate_size", default=experts["expert_feed_forward_length"])
    out: Keys = {"expert_shared_count": 1, "expert_shared_feed_forward_length": inner}
    if isinstance(c.get("num_attention_heads_per_layer"), list):
        out["attention.head_count"] = c.items("num_attention_heads_per_layer", int, n)
    if windows := window_keys(c):
        local = rope_of(c, "sliding_attention")
        turned = int(head * local.number("partial_rotary_factor", default=1.0))
        out |= windows | {"rope.freq_base_swa": local.number("rope_theta"), "rope.dimension_count_swa": turned}
    return experts | out | {"leading_dense_block_count": dense_first(c)}


def _muse(c: Hyperparameters, keys: Keys) -> Keys:
    return window_keys(c) | {
        "logit_scale": c.number("output_multiplier", default=1.0),
        "final_logit_softcapping": c.number("final_logit_softcapping", default=0.0) or None,
    }


def _muse_computed(c: Hyperparameters, keys: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return QK norm weights, which checkpoints do not have: the scale of q for q, ones for k."""
    head, scale = int(keys["attention.key_length"]), c.number("qk_scale_factor", default=1.0)
    out: dict[str, NDArray[np.float32]] = {}
    for i in range(c.n_layers):
        out[f"blk.{i}.attn_q_norm.weight"] = np.full(head, scale, np.float32)
        out[f"blk.{i}.attn_k_norm.weight"] = np.ones(head, np.float32)
    return out


def _muse_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Add 1 to the norm weights of layers. The model's last norm is unchanged."""
    return (PLUS_ONE,) if name.endswith("norm.weight") and name != "output_norm.weight" else ()


def _step_rope(c: Hyperparameters) -> Hyperparameters:
    """Return settings with two rope bases, one per kind of layer, instead of one base per layer."""
    if not isinstance(c.get("rope_theta"), list):
        return c
    kinds = layer_kinds(c)
    first = {kind: kinds.index(kind) for kind in set(kinds)}
    bases = c.items("rope_theta", (int, float))
    scaling = c.mapping("rope_scaling")
    ropes = {kind: {"rope_theta": float(bases[min(at, len(bases) - 1)])} for kind, at in first.items()}
    if "full_attention" in ropes:
        ropes["full_attention"] |= scaling
    return c.replaced(rope_parameters=ropes, rope_theta=None, rope_scaling=None)


def _step_base(c: Hyperparameters, norm: str) -> Keys:
    own = {"num_key_value_heads": c.integer("num_attention_groups", "num_key_value_heads", default=1)}
    keys = transformer_keys(_step_rope(c).replaced(**own), norm)
    return keys | {"rope.dimension_count": keys["attention.key_length"]}


def _step(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for sliding-window layers, which have other heads, and rope on complete heads."""
    c = _step_rope(c)
    other = c.inner(c.mapping("attention_other_setting"))
    flags = window_keys(c)["attention.sliding_window_pattern"]
    heads, kv = keys["attention.head_count"], keys["attention.head_count_kv"]
    local = other.positive("num_attention_heads", default=c.positive("num_sliding_attention_heads", default=heads))
    local_kv = other.positive("num_attention_groups", default=kv)
    listed = c.text("moe_layers_enum")
    dense = min(int(x) for x in listed.split(",")) if listed else dense_first(c)
    limits = {"swiglu_clamp_exp": "swiglu_limits", "swiglu_clamp_shexp": "swiglu_limits_shared"}
    bounds = {key: [float(x or 0) for x in c.get(name)] for key, name in limits.items() if c.get(name)}
    shared = c.positive("share_expert_dim", default=c.positive("moe_intermediate_size"))
    return (
        window_keys(c)
        | bounds
        | {
            "attention.head_count": [local if flag else heads for flag in flags],
            "attention.head_count_kv": [local_kv if flag else kv for flag in flags],
            "rope.freq_base_swa": rope_of(c, "sliding_attention").number("rope_theta", default=10000.0),
            "expert_count": c.positive("moe_num_experts", "num_experts"),
            "expert_used_count": c.positive("moe_top_k", "num_experts_per_tok"),
            "expert_feed_forward_length": c.positive("moe_intermediate_size"),
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": shared,
            "expert_gating_func": 2,
            "expert_weights_scale": c.number("moe_router_scaling_factor", default=1.0),
            "expert_weights_norm": c.flag("norm_expert_weight", default=True),
            "leading_dense_block_count": dense,
        }
    )


def _step_computed(c: Hyperparameters, keys: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return rope divisors for half of the head in global layers, the only form that readers support."""
    half = int(keys["rope.dimension_count"]) // 2
    found = rope_tensors(_step_rope(c), {**keys, "rope.dimension_count": half})
    return {name: np.concatenate([values, np.ones(half - len(values), np.float32)]) for name, values in found.items()}


_STEP: dict[str, Allowed] = {
    "routed_scaling_factor": lambda value, c: value == c.peek("moe_router_scaling_factor"),
    "partial_rotary_factors": lambda value, c: (
        value == [1.0 if kind == "sliding_attention" else 0.5 for kind in layer_kinds(c)][: len(value)]
    ),
}

FAMILIES = (
    CheckpointFamily(
        "laguna",
        "LagunaForCausalLM",
        _laguna,
        names={"self_attn.g_proj": "attn_gate", "mlp.experts.e_score_correction_bias": "exp_probs_b.bias"},
        settings={"gating": (True, False, "per-element", "per-head")},
    ),
    CheckpointFamily(
        "muse-glimmer",
        "MuseGlimmerForConditionalGeneration MuseGlimmerForCausalLM",
        _muse,
        names=POST_ATTENTION | {"self_attn.gate_proj": "attn_gate"},
        changes=_muse_changes,
        pairs=True,
        computed=_muse_computed,
    ),
    CheckpointFamily(
        "step35",
        "Step3p5ForCausalLM Step3p7ForConditionalGeneration",
        _step,
        names={
            "self_attn.g_proj": "attn_gate",
            "moe.gate": "ffn_gate_inp",
            "moe.router_bias": "exp_probs_b.bias",
            **{f"moe.{x}_proj": f"ffn_{x}_exps" for x in ("gate", "up", "down")},
            **{f"share_expert.{x}_proj": f"ffn_{x}_shexp" for x in ("gate", "up", "down")},
        },
        plus_one=True,
        base=_step_base,
        computed=_step_computed,
        settings=_STEP,
    ),
)
