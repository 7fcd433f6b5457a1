"""Mixture-of-experts (MoE) decoders."""

from __future__ import annotations

from typing import Any

from woolly.convert.families.decoders import POST_ATTENTION, granite_keys, local_rope_keys
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import dense_first, expert_keys, layer_kinds, own_window_keys, window_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of
from woolly.convert.tensor_ops import SWAPPED, TensorOp, one_of, reshaped

Keys = dict[str, Any]


def _experts(c: Hyperparameters, keys: Keys) -> Keys:
    return expert_keys(c, normalize=c.flag("norm_topk_prob", default=True)) | own_window_keys(c)


def _qwen3moe(c: Hyperparameters, keys: Keys) -> Keys:
    return expert_keys(c, normalize=c.flag("norm_topk_prob")) | own_window_keys(c)


def _qwen2moe(c: Hyperparameters, keys: Keys) -> Keys:
    shared = c.integer("shared_expert_intermediate_size", default=0)
    c.reject("decoder_sparse_step", unless=(None, 1))
    c.reject("mlp_only_layers", unless=(None, []))
    experts = expert_keys(c, normalize=c.flag("norm_topk_prob"))
    return experts | own_window_keys(c) | {"expert_shared_feed_forward_length": shared or None}


def _shared(c: Hyperparameters, count: int) -> Keys:
    """Return keys for shared experts with the width of routed experts."""
    if not count:
        return {}
    return {
        "expert_shared_count": count,
        "expert_shared_feed_forward_length": count * c.positive("moe_intermediate_size"),
    }


def _glm4moe(c: Hyperparameters, keys: Keys) -> Keys:
    dense = {"leading_dense_block_count": c.integer("first_k_dense_replace", default=0)}
    normalize = c.flag("norm_topk_prob", default=True)
    experts = expert_keys(c, scoring="sigmoid", normalize=normalize)
    return experts | dense | _shared(c, c.integer("n_shared_experts", default=0))


def _hunyuan_moe(c: Hyperparameters, keys: Keys) -> Keys:
    count = c.get("num_shared_expert", default=0)
    count = count[0] if isinstance(count, list) and len(set(count)) == 1 else count
    inner = expert_keys(c)["expert_feed_forward_length"]
    return expert_keys(c) | {"expert_shared_feed_forward_length": int(count) * inner or None}


def _ernie(c: Hyperparameters, keys: Keys) -> Keys:
    out = {"leading_dense_block_count": c.integer("moe_layer_start_index", default=0)}
    out["interleave_moe_layer_step"] = c.positive("moe_layer_interval", default=1)
    return expert_keys(c) | out | _shared(c, c.integer("moe_num_shared_experts", default=0))


def _gpt_oss(c: Hyperparameters, keys: Keys) -> Keys:
    inner = c.positive("intermediate_size")
    return expert_keys(c) | window_keys(c, 2) | {"expert_feed_forward_length": inner}


def _gpt_oss_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split interleaved gate and up, and transpose. Biases are one vector per expert."""
    if name.startswith(("ffn_gate_exps", "ffn_up_exps")):
        part = one_of(int("up" in name), 2, -1, interleaved=True)
        return (part,) if name.endswith("bias") else (part, SWAPPED)
    return (SWAPPED,) if name == "ffn_down_exps.weight" else ()


def _llama4(c: Hyperparameters, keys: Keys) -> Keys:
    inner, step = c.positive("intermediate_size"), c.positive("interleave_moe_layer_step", default=1)
    out: Keys = {
        "feed_forward_length": c.positive("intermediate_size_mlp", default=inner),
        "expert_feed_forward_length": inner,
        "expert_shared_feed_forward_length": inner,
        "interleave_moe_layer_step": step,
        "attention.sliding_window": c.integer("attention_chunk_size", default=8192),
    }
    # Readers know these values of all published models, and do not round them.
    if (scale := c.number("attn_scale", default=0.1)) != 0.1:
        out["attention.temperature_scale"] = scale
    if (length := c.integer("floor_scale", default=8192)) != 8192:
        out["attention.temperature_length"] = length
    return expert_keys(c) | out


def _llama4_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if name in ("ffn_gate_exps.weight", "ffn_up_exps.weight"):
        return (one_of(int("up" in name), 2, -1), SWAPPED)
    return (SWAPPED,) if name == "ffn_down_exps.weight" else ()


def _minimax_m2(c: Hyperparameters, keys: Keys) -> Keys:
    experts = expert_keys(c, scoring="sigmoid") | {"expert_feed_forward_length": c.positive("intermediate_size")}
    head = keys["attention.key_length"]
    if c.has("rotary_dim"):
        return experts | {"rope.dimension_count": min(head, c.positive("rotary_dim"))}
    return experts


def _minimax_m3(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for the block-sparse index, which has a nested object in published files."""
    c.reject("hidden_act", unless=(None, "silu", "swigluoai"))
    c.reject("swiglu_alpha", unless=(None, 1.702))
    c.reject("swiglu_limit", unless=(None, 7, 7.0))
    n_rot = min(keys["attention.key_length"], c.positive("rotary_dim"))
    if rope_of(c).has("partial_rotary_factor"):
        c.reject("rotary_dim", unless=() if keys["rope.dimension_count"] != n_rot else (c.get("rotary_dim"),))
    published = c.mapping("sparse_attention_config")
    own = {
        "head_count": ("index_n_heads", "sparse_num_index_heads"),
        "key_length": ("index_head_dim", "sparse_index_dim"),
        "top_k": ("index_topk_blocks", "sparse_topk_blocks"),
        "block_size": ("index_block_size", "sparse_block_size"),
        "local_blocks": ("index_local_blocks", "sparse_local_block"),
    }
    index = {
        f"attention.indexer.{key}": c.inner({new: c.get(new), old: published.get(old)}).positive(old, new)
        for key, (new, old) in own.items()
    }
    shared = {"expert_shared_count": c.integer("n_shared_experts", default=1)}
    shared["expert_shared_feed_forward_length"] = c.positive("shared_intermediate_size", "intermediate_size")
    return {
        **expert_keys(c, scoring="sigmoid", normalize=True),
        "expert_feed_forward_length": c.positive("intermediate_size"),
        **shared,
        "feed_forward_length": c.positive("dense_intermediate_size"),
        "leading_dense_block_count": dense_first(c),
        "rope.dimension_count": n_rot,
        **index,
    }


def _olmoe(c: Hyperparameters, keys: Keys) -> Keys:
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    c.reject("norm_topk_prob")
    return experts


def _phimoe(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("num_experts_per_tok", unless=(None, 2))  # SparseMixer selects two
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    return experts


def _granitemoe(c: Hyperparameters, keys: Keys) -> Keys:
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    shared = c.integer("shared_intermediate_size", default=0)
    return granite_keys(c, keys) | experts | {"expert_shared_feed_forward_length": shared or None}


def _afmoe(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("mup_enabled", unless=(True,))  # the class's default is False
    if layer_kinds(c, 4) != layer_kinds(c.replaced(layer_types=None), 4):  # layers without a window have no rope
        c.reject("layer_types", unless=())
    experts = expert_keys(c, scoring="sigmoid", normalize=c.flag("route_norm", default=True))
    experts["expert_weights_scale"] = c.number("route_scale", default=1.0)
    dense = {"leading_dense_block_count": c.integer("num_dense_layers", default=0)}
    return experts | dense | _shared(c, c.integer("num_shared_experts", default=0)) | window_keys(c, 4)


def _exaone_moe(c: Hyperparameters, keys: Keys) -> Keys:
    experts = expert_keys(c, scoring="sigmoid", normalize=c.flag("norm_topk_prob", default=True))
    shared = _shared(c, c.integer("num_shared_experts", "n_shared_experts", default=0))
    return experts | shared | window_keys(c, 4) | {"leading_dense_block_count": dense_first(c)}


def _hy_v3(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("route_norm", unless=(None, True))
    experts = expert_keys(c, scoring="sigmoid", normalize=True)
    experts["expert_weights_scale"] = c.number("router_scaling_factor", "routed_scaling_factor", default=1.0)
    shared = _shared(c, c.integer("num_shared_experts", default=0))
    return experts | shared | {"leading_dense_block_count": dense_first(c)}


def _cohere2_moe(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("shared_expert_combination_strategy", unless=(None, "average"))
    inner = c.positive("intermediate_size")
    scoring = c.text("expert_selection_fn", default="sigmoid")
    experts = expert_keys(c, scoring=scoring, normalize=c.flag("norm_topk_prob", default=True))
    if count := c.integer("num_shared_experts", default=0):
        experts |= {"expert_shared_count": count, "expert_shared_feed_forward_length": count * inner}
    return (
        experts
        | window_keys(c, 4)
        | {
            "expert_feed_forward_length": inner,
            "feed_forward_length": c.positive("prefix_dense_intermediate_size", default=inner),
            "leading_dense_block_count": dense_first(c),
            "logit_scale": c.number("logit_scale", default=1.0),
        }
    )


def _mellum(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("norm_topk_prob", unless=(None, True))
    c.reject("mlp_layer_types", unless=(None, ["sparse"] * c.n_layers))
    return expert_keys(c) | window_keys(c, 4) | local_rope_keys(c, keys)


def _granite_swa(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the layers with rope. A rope base of 0 means no rope."""
    bases = c.get("layer_rope_theta")
    out = _granitemoe(c, keys) if c.get("num_local_experts") is not None else granite_keys(c, keys)
    flags = [kind == "sliding_attention" for kind in layer_kinds(c)]
    out |= {"attention.sliding_window": c.positive("sliding_window"), "attention.sliding_window_pattern": flags}
    if bases is None:
        return out
    bases = c.items("layer_rope_theta", (int, float), c.n_layers)
    if len({base for base in bases if base}) > 1:
        c.reject("layer_rope_theta")
    first = next((float(base) for base in bases if base), keys["rope.freq_base"])
    return out | {"rope.freq_base": first, "attention.rope_pattern": [bool(base) for base in bases]}


def _mimo2(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for sliding-window layers with other KV heads, and sinks."""
    if c.get("layer_types") is None and isinstance(pattern := c.get("hybrid_layer_pattern"), list):
        kinds = ["sliding_attention" if flag else "full_attention" for flag in pattern]
        c = c.with_defaults({"layer_types": kinds})
    flags = window_keys(c)["attention.sliding_window_pattern"]
    full = c.positive("num_key_value_heads")
    local = c.integer("swa_num_key_value_heads", default=2 * full)
    base = rope_of(c, "sliding_attention").number("rope_theta", default=10000.0)
    if not c.mapping("rope_parameters"):
        base = c.number("swa_rope_theta", default=10000.0)
    experts = expert_keys(c, scoring="sigmoid", normalize=c.flag("norm_topk_prob", default=True))
    return (
        window_keys(c)
        | experts
        | {
            "leading_dense_block_count": dense_first(c),
            "attention.head_count_kv": [local if flag else full for flag in flags],
            "attention.value_length": c.positive("v_head_dim"),
            "attention.value_scale": c.number("attention_value_scale", default=0.0) or None,
            "rope.freq_base_swa": base,
        }
    )


def _is_every_fourth(value: Any, c: Hyperparameters) -> bool:
    """True if every fourth layer has no rope. In the configuration, 1 means rope."""
    return isinstance(value, list) and value == [int((i + 1) % 4 > 0) for i in range(len(value))]


FAMILIES = (
    CheckpointFamily(
        "afmoe",
        "AfmoeForCausalLM",
        _afmoe,
        names=POST_ATTENTION | {"self_attn.gate_proj": "attn_gate"},
    ),
    CheckpointFamily("dots1", "Dots1ForCausalLM", _glm4moe),
    CheckpointFamily(
        "ernie4_5-moe",
        "Ernie4_5_MoeForCausalLM",
        _ernie,
        changes=lambda c, name, block: (reshaped(-1),) if name == "exp_probs_b.bias" else (),
    ),
    CheckpointFamily("glm4moe", "Glm4MoeForCausalLM", _glm4moe, names=POST_ATTENTION),
    CheckpointFamily(
        "gpt-oss",
        "GptOssForCausalLM",
        _gpt_oss,
        names=POST_ATTENTION
        | {
            "mlp.experts.gate_up_proj": "ffn_gate_exps.weight*ffn_up_exps.weight",
            "mlp.experts.gate_up_proj_bias": "ffn_gate_exps.bias*ffn_up_exps.bias",
            "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
        },
        changes=_gpt_oss_changes,
    ),
    CheckpointFamily("granitemoe", "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM", _granitemoe, pairs=True),
    CheckpointFamily("hunyuan-moe", "HunYuanMoEV1ForCausalLM", _hunyuan_moe),
    CheckpointFamily(
        "llama4",
        "Llama4ForCausalLM Llama4ForConditionalGeneration",
        _llama4,
        names={"feed_forward.experts.gate_up_proj": "ffn_gate_exps.weight*ffn_up_exps.weight"},
        changes=_llama4_changes,
        settings={"use_qk_norm": (True,), "no_rope_layer_interval": (4,), "no_rope_layers": _is_every_fourth},
    ),
    CheckpointFamily("cohere2moe", "Cohere2MoeForCausalLM", _cohere2_moe, norm="layer"),
    CheckpointFamily("mellum", "MellumForCausalLM", _mellum),
    CheckpointFamily("exaone-moe", "ExaoneMoeForCausalLM", _exaone_moe),
    CheckpointFamily("granite_swa", "GraniteSWAForCausalLM GraniteMoeSWAForCausalLM", _granite_swa, pairs=True),
    CheckpointFamily("hy_v3", "HYV3ForCausalLM", _hy_v3, names={"mlp.expert_bias": "exp_probs_b."}),
    CheckpointFamily("mimo2", "MiMoV2FlashForCausalLM MiMoV2ForCausalLM", _mimo2),
    CheckpointFamily("minimax-m2", "MiniMaxM2ForCausalLM", _minimax_m2),
    CheckpointFamily(
        "minimax-m3",
        "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration MiniMaxM3VLForCausalLM"
        " MiniMaxM3VLForConditionalGeneration",
        _minimax_m3,
        names={
            **{f"self_attn.index_{x}": f"indexer.{x}" for x in ("q_proj", "k_proj", "q_norm", "k_norm")},
            **{f"self_attn.indexer.{x}": f"indexer.{x}" for x in ("q_proj", "k_proj", "q_norm", "k_norm")},
            "mlp.gate_up_proj": "ffn_gate|ffn_up",
            "mlp.shared_experts.gate_up_proj": "ffn_gate_shexp|ffn_up_shexp",
        },
        plus_one=True,
    ),
    CheckpointFamily("olmoe", "OlmoeForCausalLM", _olmoe),
    CheckpointFamily(
        "phimoe",
        "PhimoeForCausalLM PhiMoEForCausalLM",
        _phimoe,
        settings={"router_jitter_noise": (0.01,)},  # SparseMixer's threshold, also without training
    ),
    CheckpointFamily(
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        _qwen2moe,
        changes=lambda c, name, block: (reshaped(-1),) if name == "ffn_gate_inp_shexp.weight" else (),
    ),
    CheckpointFamily("qwen3moe", "Qwen3MoeForCausalLM", _qwen3moe),
    CheckpointFamily(
        "qwen3vlmoe",
        "Qwen3VLMoeForConditionalGeneration",
        _experts,
        names={"mlp.experts.gate_up_proj": "ffn_gate_exps.weight*ffn_up_exps.weight"},
        changes=_llama4_changes,
    ),
)
