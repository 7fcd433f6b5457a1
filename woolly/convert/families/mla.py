"""Models with multi-head latent attention (MLA)."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import dense_first, expert_keys, layer_kinds
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of
from woolly.convert.tensor_ops import MINUS_EXP, SWAPPED, TensorOp, picked, reshaped, scaled

Keys = dict[str, Any]
_KV_B = {"self_attn.kv_b_proj": "attn_k_b*attn_v_b"}


def _sizes(c: Hyperparameters) -> tuple[int, int, int, int]:
    """Return the number of heads, and their columns without rope, with rope, and of V."""
    names = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    heads, straight, turned, value = (c.positive(name) for name in names)
    return heads, straight, turned, value


def _latent(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for absorbed K and V: one KV head as wide as the latent, and matrices from it to each head."""
    _, straight, turned, value = _sizes(c)
    rank = c.positive("kv_lora_rank")
    rope = rope_of(c)
    out: Keys = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": c.integer("q_lora_rank", default=0),
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": straight + turned,
        "attention.value_length_mla": value,
        "rope.dimension_count": turned,
    }
    if multiplier := rope.number("mscale_all_dim", default=0.0):
        out["rope.scaling.yarn_log_multiplier"] = 0.1 * multiplier
    return out


def _experts(c: Hyperparameters, scoring: str) -> Keys:
    normalize = c.get("norm_topk_prob", "moe_renormalize", default=False)
    out = expert_keys(c, scoring=scoring, normalize=bool(normalize))
    count = c.integer("n_shared_experts", "num_shared_experts", default=0)
    inner = out.get("expert_feed_forward_length", 0)
    if count:
        out |= {"expert_shared_count": count, "expert_shared_feed_forward_length": count * inner}
    return out | {"leading_dense_block_count": c.integer("first_k_dense_replace", default=0)}


def _deepseek(c: Hyperparameters, keys: Keys) -> Keys:
    is_v2 = c.text("model_type") == "deepseek_v2"
    if is_v2:
        c.reject("norm_topk_prob")
        c = c if c.get("topk_method", default="greedy") != "greedy" else c.replaced(n_group=1)
    return _latent(c, keys) | _experts(c, "softmax" if is_v2 else "sigmoid")


def _indexed(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for DeepSeek's MLA with index heads for sparse attention."""
    own = {"head_count": "index_n_heads", "key_length": "index_head_dim", "top_k": "index_topk"}
    indexer: Keys = {f"attention.indexer.{key}": c.positive(name) for key, name in own.items()}
    if c.get("indexer_types") is not None:  # "full", or "shared" to reuse the previous layer's selection
        indexer["attention.indexer.types"] = [kind == "full" for kind in c.items("indexer_types", str)]
    return _latent(c, keys) | _experts(c, "sigmoid") | indexer


def _minicpm3(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys without absorbed K and V. Scales of rows, residuals and logits must equal the published models'."""
    for name, value in (("scale_emb", 12), ("scale_depth", 1.4), ("dim_model_base", 256)):
        c.reject(name, unless=(value,))
    _, straight, turned, value = _sizes(c)
    return {
        "attention.kv_lora_rank": c.positive("kv_lora_rank"),
        "attention.q_lora_rank": c.positive("q_lora_rank"),
        "attention.key_length": straight + turned,
        "attention.value_length": value,
        "rope.dimension_count": turned,
    }


def _mistral4(c: Hyperparameters, keys: Keys) -> Keys:
    rope = rope_of(c)
    temper = rope.number("llama_4_scaling_beta", default=0.0)
    out = {"attention.temperature_scale": temper or None}
    out["attention.temperature_length"] = rope.integer("original_max_position_embeddings", default=0) or None
    return _latent(c, keys) | _experts(c, "softmax") | out


def _kimi(c: Hyperparameters, keys: Keys) -> Keys:
    linear = c.inner(c.mapping("linear_attn_config"))
    if c.get("layer_types") is None:
        full = linear.items("full_attn_layers", int)  # 1-based
        kinds = ["full_attention" if i + 1 in full else "linear_attention" for i in range(c.n_layers)]
        c = c.with_defaults({"layer_types": kinds})
    out = _latent(c, keys) | _experts(c, "sigmoid")
    out["attention.head_count_kv"] = [int(kind == "full_attention") for kind in layer_kinds(c)]
    out["ssm.conv_kernel"] = linear.integer(
        "short_conv_kernel_size", default=c.integer("linear_conv_kernel_dim", default=4)
    )
    out["kda.head_dim"] = linear.integer("head_dim", default=c.integer("linear_head_dim", default=128))
    return out


# MLA sizes of sliding-window layers, with class defaults.
_OWN = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def _in_window(c: Hyperparameters) -> Hyperparameters:
    """Return the sizes of sliding-window layers under the names of the other layers' sizes."""
    listed = next(iter(c.mapping("per_layer_config").values()), None)  # format of transformers
    if isinstance(listed, dict):
        return c.replaced(**listed)
    return c.replaced(**{name: c.get(f"swa_{name}", default=value) for name, value in _OWN.items()})


def _kinds(c: Hyperparameters) -> list[bool]:
    """Return True for each layer with a sliding window."""
    if c.get("layer_types") is None:
        return [i >= 2 and i % 4 != 1 for i in range(c.n_layers)]
    return [kind == "sliding_attention" for kind in layer_kinds(c)]


def _dots3note(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for separate MLA widths, heads and rope in sliding-window layers, and an index in global layers."""
    for name in ("use_dsa", "k_rope_only_layernorm", "apply_mla_qkv_lora_rescale", "use_sliding_window"):
        c.reject(name, unless=(None, True))
    for name in ("use_dynamic_rsf", "moe_gating_fp32"):
        c.reject(name)
    for name in ("attention_gate_type", "swa_attention_gate_type"):
        c.reject(name, unless=(None, "headwise"))
    own, windows = _in_window(c), _kinds(c)
    _, straight, turned, value = _sizes(own)
    rank = own.positive("kv_lora_rank")
    for name in ("qk_rope_head_dim", "q_lora_rank"):
        c.reject(name, unless=(own.positive(name),))
    given = c.mapping("rope_parameters")
    whole = rope_of(c, "indexed_attention" if "indexed_attention" in given else "full_attention")
    windowed = rope_of(c, "sliding_attention") if given else c.inner({"rope_theta": c.get("swa_rope_theta")})
    out = (
        _latent(c, keys)
        | _experts(c, "sigmoid")
        | {
            "attention.head_count": [(own if window else c).positive("num_attention_heads") for window in windows],
            "attention.sliding_window": c.positive("sliding_window", "sliding_window_size", default=512),
            "attention.sliding_window_pattern": windows,
            "attention.kv_lora_rank_swa": rank,
            "attention.key_length_swa": rank + turned,
            "attention.value_length_swa": rank,
            "attention.key_length_mla_swa": straight + turned,
            "attention.value_length_mla_swa": value,
            "rope.freq_base": whole.number("rope_theta", default=8e7),
            "rope.freq_base_swa": windowed.number("rope_theta", default=5e4),
            "expert_weights_norm": c.flag("norm_topk_prob", default=True),
            "leading_dense_block_count": dense_first(c.with_defaults({"first_k_dense_replace": 1})),
            "attention.indexer.types": [not window for window in windows],
        }
    )
    shared = c.integer("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size", default=0)
    if shared:
        out["expert_shared_feed_forward_length"] = shared
    return {**_indexed(c, keys), **out}


def _dots3note_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Fold latent scales into the preceding norms. A draft block counts as a sliding-window layer."""
    windows = _kinds(c)
    own = _in_window(c) if block >= len(windows) or windows[block] else c
    ranks = {"attn_q_a_norm.weight": "q_lora_rank", "attn_kv_a_norm.weight": "kv_lora_rank"}
    if name in ranks:
        return (scaled(np.float32((c.positive("hidden_size") / own.positive(ranks[name])) ** 0.5)),)
    return _changes(own, name, block)


def _changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split the rows of each head into k, which is transposed, and v."""
    if name not in ("attn_k_b.weight", "attn_v_b.weight"):
        return ()
    heads, straight, _, value = _sizes(c)
    rows = np.arange(heads * (straight + value)).reshape(heads, -1)
    rank = c.positive("kv_lora_rank")
    if name == "attn_k_b.weight":
        return (picked(rows[:, :straight].reshape(-1), rows.size), reshaped(heads, straight, rank), SWAPPED)
    return (picked(rows[:, straight:].reshape(-1), rows.size), reshaped(heads, value, rank))


def _kimi_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if name == "ssm_a":
        return (MINUS_EXP, reshaped(1, 1, -1, 1))
    if name.startswith("ssm_conv1d_"):
        kernel = c.inner(c.mapping("linear_attn_config")).integer(
            "short_conv_kernel_size", default=c.integer("linear_conv_kernel_dim", default=4)
        )
        return (reshaped(1, -1, 1, kernel),)
    return _changes(c, name, block)


_INDEXER = {
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
}

FAMILIES = (
    CheckpointFamily(
        "deepseek2",
        "DeepseekV2ForCausalLM DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM YoutuForCausalLM",
        _deepseek,
        names=_KV_B,
        changes=_changes,
    ),
    CheckpointFamily("deepseek32", "DeepseekV32ForCausalLM", _indexed, names=_KV_B | _INDEXER, changes=_changes),
    CheckpointFamily("glm-dsa", "GlmMoeDsaForCausalLM", _indexed, names=_KV_B | _INDEXER, changes=_changes),
    CheckpointFamily(
        "dots3note",
        "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration Dots3NoteTextForCausalLM",
        _dots3note,
        names=_KV_B | _INDEXER | {"self_attn.g_proj": "attn_gate", "self_attn.k_rope_only_layernorm": "attn_k_norm"},
        changes=_dots3note_changes,
    ),
    CheckpointFamily("minicpm3", "MiniCPM3ForCausalLM", _minicpm3, names={"self_attn.kv_b_proj": "attn_kv_b"}),
    CheckpointFamily("mistral4", "Mistral4ForCausalLM", _mistral4, names=_KV_B, changes=_changes),
    CheckpointFamily(
        "kimi-linear",
        "KimiLinearForCausalLM",
        _kimi,
        names=_KV_B
        | {
            "self_attn.f_a_proj": "ssm_f_a",
            "self_attn.f_b_proj": "ssm_f_b",
            "self_attn.g_a_proj": "ssm_g_a",
            "self_attn.g_b_proj": "ssm_g_b",
            "self_attn.b_proj": "ssm_beta",
            "self_attn.o_norm": "ssm_norm",
            "self_attn.q_conv1d": "ssm_conv1d_q",
            "self_attn.k_conv1d": "ssm_conv1d_k",
            "self_attn.v_conv1d": "ssm_conv1d_v",
        },
        changes=_kimi_changes,
    ),
)
