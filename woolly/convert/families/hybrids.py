"""Models with recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.config_ledger import RELU2, activation
from woolly.convert.families.decoders import granite_keys
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import expert_keys, layer_kinds
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.tensor_ops import (
    MINUS_EXP,
    SQUEEZED,
    TensorOp,
    columns_of_heads,
    picked,
    reshaped,
    rows_of_heads,
    scaled,
)

Keys = dict[str, Any]
_QWEN = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkvz": "attn_qkv*attn_gate",
    "post_attention_layernorm": "post_attention_norm",
}


def _ssm(kernel: int, inner: int, state: int, rank: int, groups: int | None = None) -> Keys:
    out = {"ssm.conv_kernel": kernel, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}
    return out if groups is None else out | {"ssm.group_count": groups}


def _kv(c: Hyperparameters, keys: Keys, *kinds: str) -> list[int]:
    """Return the KV heads per layer, 0 in recurrent layers."""
    return [keys["attention.head_count_kv"] if kind in kinds else 0 for kind in layer_kinds(c)]


def _qwen(c: Hyperparameters, keys: Keys) -> Keys:
    kinds = layer_kinds(c, c.integer("full_attention_interval", default=4))
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    period = full[0] + 1 if full else len(kinds) + 1
    if full != list(range(period - 1, len(kinds), period)):
        c.reject("layer_types")
    heads, head = c.positive("linear_num_value_heads"), c.positive("linear_value_head_dim")
    shared = c.integer("shared_expert_intermediate_size", default=0) if c.has("num_experts") else 0
    state, groups = c.positive("linear_key_head_dim"), c.positive("linear_num_key_heads")
    c.reject("mlp_only_layers", unless=(None, []))
    return (
        _ssm(c.positive("linear_conv_kernel_dim"), heads * head, state, heads, groups)
        | expert_keys(c, normalize=c.flag("norm_topk_prob", default=True))
        | {"full_attention_interval": period, "expert_shared_feed_forward_length": shared or None}
        | {"feed_forward_length": c.integer("intermediate_size", default=0)}
    )


def _qwen_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Reorder v heads from grouped by k head to interleaved."""
    groups, heads = c.positive("linear_num_key_heads"), c.positive("linear_num_value_heads")
    k, v = c.positive("linear_key_head_dim"), c.positive("linear_value_head_dim")
    is_next = c.text("model_type").startswith("qwen3_next")
    if name in ("ffn_gate_inp_shexp.weight",):
        return (reshaped(-1),)
    if name == "ssm_conv1d.weight":
        return (SQUEEZED,) if is_next else (SQUEEZED, rows_of_heads(groups, v, 2 * groups * k))
    if is_next:
        return _next_changes(name, groups, heads // groups, k, v)
    ops: dict[str, tuple[TensorOp, ...]] = {
        "ssm_a": (MINUS_EXP, rows_of_heads(groups, 1)),
        "ssm_dt.bias": (rows_of_heads(groups, 1),),
        "ssm_alpha.weight": (rows_of_heads(groups, 1),),
        "ssm_beta.weight": (rows_of_heads(groups, 1),),
        "attn_gate.weight": (rows_of_heads(groups, v),),
        "attn_qkv.weight": (rows_of_heads(groups, v, 2 * groups * k),),
        "ssm_out.weight": (columns_of_heads(groups, v),),
    }
    return ops.get(name, ())


def _next_changes(name: str, groups: int, share: int, k: int, v: int) -> tuple[TensorOp, ...]:
    """Split Qwen3-Next's fused matrix, which has q, k, v and z for each k head."""
    if name == "ssm_a":
        return (MINUS_EXP,)
    if name not in ("attn_qkv.weight", "attn_gate.weight"):
        return ()
    rows = np.arange(groups * 2 * (k + share * v)).reshape(groups, -1)
    q, key, value, z = np.split(rows, [k, 2 * k, 2 * k + share * v], axis=1)
    parts = (q, key, value) if name == "attn_qkv.weight" else (z,)
    return (picked(np.concatenate([part.reshape(-1) for part in parts]), rows.size),)


def _lfm2(c: Hyperparameters, keys: Keys) -> Keys:
    out: Keys = {"shortconv.l_cache": c.positive("conv_L_cache", default=3)}
    if c.get("layer_types") is None:
        full = c.items("full_attn_idxs", int)
        kinds = ["full_attention" if i in full else "conv" for i in range(c.n_layers)]
        c = c.with_defaults({"layer_types": kinds})
    out["attention.head_count_kv"] = _kv(c, keys, "full_attention")
    if c.flag("block_auto_adjust_ff_dim"):
        width = int(2 * keys["feed_forward_length"] / 3)
        width = int(c.number("block_ffn_dim_multiplier", default=1.0) * width)
        multiple = c.positive("block_multiple_of", default=256)
        out["feed_forward_length"] = -(-width // multiple) * multiple
    if c.has("num_experts"):
        out |= expert_keys(c, scoring="sigmoid", normalize=c.flag("norm_topk_prob", default=True))
        out["leading_dense_block_count"] = c.integer("num_dense_layers", default=0)
    return out


def _mamba2_ops(groups: int, name: str) -> tuple[TensorOp, ...]:
    ops: dict[str, tuple[TensorOp, ...]] = {
        "ssm_a": (MINUS_EXP, reshaped(-1, 1)),
        "ssm_d": (reshaped(-1, 1),),
        "ssm_conv1d.weight": (SQUEEZED,),
        "ssm_norm.weight": (reshaped(groups, -1),),
    }
    return ops.get(name, ())


def _granite(c: Hyperparameters, keys: Keys) -> Keys:
    heads, head = c.positive("mamba_n_heads"), c.integer("mamba_d_head", default=0)
    inner = heads * head if head else c.positive("mamba_expand", default=2) * keys["embedding_length"]
    ssm = _ssm(c.positive("mamba_d_conv"), inner, c.positive("mamba_d_state"), heads, c.positive("mamba_n_groups"))
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    shared = c.integer("shared_intermediate_size", default=0)
    if c.get("layer_types") is None and c.get("layers_block_type") is not None:
        c = c.with_defaults({"layer_types": c.items("layers_block_type", str, c.n_layers)})
    out = granite_keys(c, keys) | ssm | experts
    out["attention.head_count_kv"] = _kv(c, keys, "attention", "full_attention")
    out["rope.scaling.finetuned"] = c.text("position_embedding_type", "nope") == "rope"
    if experts:
        return out | {"expert_shared_feed_forward_length": shared or None}
    return out | {"feed_forward_length": shared}


def _granite_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return _mamba2_ops(c.positive("mamba_n_groups"), name)


def _falcon_h1(c: Hyperparameters, keys: Keys) -> Keys:
    heads = c.positive("mamba_n_heads")
    inner = c.integer("mamba_d_ssm", default=0) or c.positive("mamba_expand") * keys["embedding_length"]
    c.reject("mamba_norm_before_gate")
    return _ssm(c.positive("mamba_d_conv"), inner, c.positive("mamba_d_state"), heads, c.positive("mamba_n_groups"))


def _falcon_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Fold the model's multipliers into the weights."""
    gate, down = c.get("mlp_multipliers", default=(1.0, 1.0))
    attention, ssm = c.number("attention_in_multiplier", default=1.0), c.number("ssm_in_multiplier", default=1.0)
    factors = {
        "attn_q.weight": attention,
        "attn_k.weight": attention * c.number("key_multiplier", default=1.0),
        "attn_v.weight": attention,
        "attn_output.weight": c.number("attention_out_multiplier", default=1.0),
        "ffn_gate.weight": float(gate),
        "ffn_down.weight": float(down),
        "ssm_out.weight": c.number("ssm_out_multiplier", default=1.0),
        "token_embd.weight": c.number("embedding_multiplier", default=1.0),
        "output.weight": c.number("lm_head_multiplier", default=1.0),
    }
    if name == "ssm_in.weight":
        inner = c.integer("mamba_d_ssm", default=0) or c.positive("mamba_expand") * c.positive("hidden_size")
        shared, heads = c.positive("mamba_n_groups") * c.positive("mamba_d_state"), c.positive("mamba_n_heads")
        parts = c.items("ssm_multipliers", (int, float), 5) if c.get("ssm_multipliers") is not None else [1.0] * 5
        rows = np.repeat(np.asarray(parts, np.float32) * ssm, [inner, inner, shared, shared, heads])
        return () if (rows == 1).all() else (scaled(rows[:, None]),)
    if factors.get(name, 1.0) != 1.0:
        return (scaled(np.float32(factors[name])),)
    return _mamba2_ops(c.positive("mamba_n_groups"), name)


def _nemotron_kinds(c: Hyperparameters) -> list[str]:
    """Return the kind of each layer: recurrent, attention, or MLP."""
    if isinstance(pattern := c.get("hybrid_override_pattern"), str) and c.get("layers_block_type") is None:
        letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
        kinds = [letters.get(one, one) for one in pattern]
    else:
        kinds = c.items("layers_block_type", str)
    known = {"linear_attention": "mamba", "full_attention": "attention"}
    return [known.get(kind, kind) for kind in kinds]


def _nemotron_h(c: Hyperparameters, keys: Keys) -> Keys:
    kinds = _nemotron_kinds(c)
    heads, dense = c.positive("mamba_num_heads"), keys["feed_forward_length"]
    widths = {"mlp": dense, "moe": dense}
    experts = expert_keys(c, normalize=c.flag("norm_topk_prob", default=True)) if "moe" in kinds else {}
    if experts:
        widths["moe"] = experts["expert_feed_forward_length"]
        experts |= {
            "expert_shared_count": c.integer("n_shared_experts", default=0),
            "expert_shared_feed_forward_length": c.integer("moe_shared_expert_intermediate_size", default=0) or None,
            "moe_latent_size": c.integer("moe_latent_size", default=0) or None,
        }
    groups, state = c.positive("n_groups"), c.positive("ssm_state_size")
    eps = c.number("layer_norm_epsilon", "norm_eps", "rms_norm_eps")
    lists: Keys = {
        "attention.head_count_kv": [keys["attention.head_count_kv"] if kind == "attention" else 0 for kind in kinds],
        "feed_forward_length": [widths.get(kind, 0) for kind in kinds],
        "attention.layer_norm_epsilon": eps,
    }
    return _ssm(c.positive("conv_kernel"), heads * c.positive("mamba_head_dim"), state, heads, groups) | experts | lists


def _mamba_base(c: Hyperparameters, norm: str) -> Keys:
    return {
        "block_count": c.n_layers,
        "context_length": c.integer("max_position_embeddings", default=1 << 20),
        "embedding_length": c.positive("hidden_size", "d_model"),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": c.number("layer_norm_epsilon", "rms_norm_eps", default=1e-5),
    }


def _mamba(c: Hyperparameters, keys: Keys) -> Keys:
    width = keys["embedding_length"]
    inner = c.integer("intermediate_size", "d_inner", default=2 * width)
    rank = c.get("time_step_rank", "dt_rank", default="auto")
    rank = -(-width // 16) if rank == "auto" else int(rank)
    falcon = c.text("model_type") == "falcon_mamba"
    kernel, state = c.positive("conv_kernel", "d_conv", default=4), c.positive("state_size", "d_state", default=16)
    eps = c.number("mixer_rms_eps", default=1e-6) if falcon else None
    return _ssm(kernel, inner, state, rank) | {"ssm.dt_b_c_rms": falcon, "ssm.dt_b_c_rms_epsilon": eps}


def _mamba_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return {"ssm_a": (MINUS_EXP,), "ssm_conv1d.weight": (SQUEEZED,)}.get(name, ())


def _mamba2(c: Hyperparameters, keys: Keys) -> Keys:
    heads = c.positive("num_heads", default=64)
    inner = c.integer("intermediate_size", "d_inner", default=0) or heads * c.positive(
        "head_dim", "headdim", default=64
    )
    kernel, state = c.positive("conv_kernel", default=4), c.positive("state_size", "d_state", default=128)
    return _ssm(kernel, inner, state, heads, c.positive("n_groups", "ngroups", default=1))


def _jamba(c: Hyperparameters, keys: Keys) -> Keys:
    period, offset = c.positive("attn_layer_period", default=8), c.integer("attn_layer_offset", default=4)
    kv = [keys["attention.head_count_kv"] if i % period == offset else 0 for i in range(c.n_layers)]
    width = keys["embedding_length"]
    rank = c.get("mamba_dt_rank", default="auto")
    rank = -(-width // 16) if rank == "auto" else int(rank)
    inner = c.positive("mamba_expand", default=2) * width
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    ssm = _ssm(c.positive("mamba_d_conv", default=4), inner, c.positive("mamba_d_state", default=16), rank)
    return ssm | experts | {"attention.head_count_kv": kv}


def _minimax(c: Hyperparameters, keys: Keys) -> Keys:
    """Return attention interval, MoE keys and residual scale. Reject residual factors that differ by kind of layer."""
    kinds = layer_kinds(c) if c.get("layer_types") is not None else c.items("attn_type_list", int, c.n_layers)
    full = [i for i, kind in enumerate(kinds) if kind in ("full_attention", 1)]
    period = full[0] + 1 if full else len(kinds) + 1
    if full != list(range(period - 1, len(kinds), period)):
        c.reject("layer_types" if c.get("layer_types") is not None else "attn_type_list", unless=())
    names = [f"{x}_{y}_factor" for x in ("full_attn", "linear_attn", "mlp") for y in ("alpha", "beta")]
    values = [c.number(name, f"layernorm_{name.replace('full_attn', 'full_attention')}", default=1.0) for name in names]
    if len(set(values[::2])) > 1 or set(values[1::2]) != {1.0}:
        c.reject(names[0], unless=())
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    return experts | {"full_attention_interval": period, "residual_scale": values[0]}


_MINIMAX = {
    "self_attn.norm": "attn_norm_2",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.output_gate": "attn_gate",
    "self_attn.out_proj": "attn_output",
}

FAMILIES = (
    CheckpointFamily(
        "qwen35",
        "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
        _qwen,
        names=_QWEN,
        changes=_qwen_changes,
        plus_one=True,
    ),
    CheckpointFamily(
        "qwen35moe",
        "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
        _qwen,
        names=_QWEN,
        changes=_qwen_changes,
        plus_one=True,
        defaults={"intermediate_size": 0},
    ),
    CheckpointFamily("qwen3next", "Qwen3NextForCausalLM", _qwen, names=_QWEN, changes=_qwen_changes, plus_one=True),
    CheckpointFamily(
        "lfm2",
        "Lfm2ForCausalLM LFM2ForCausalLM",
        _lfm2,
        top={"embedding_norm": "token_embd_norm"},
        changes=lambda c, name, block: (SQUEEZED,) if name == "shortconv.conv.weight" else (),
    ),
    CheckpointFamily(
        "lfm2moe",
        "Lfm2MoeForCausalLM",
        _lfm2,
        top={"embedding_norm": "token_embd_norm"},
        changes=lambda c, name, block: (SQUEEZED,) if name == "shortconv.conv.weight" else (),
    ),
    CheckpointFamily("granitehybrid", "GraniteMoeHybridForCausalLM", _granite, changes=_granite_changes, pairs=True),
    CheckpointFamily(
        "falcon-h1",
        "FalconH1ForCausalLM",
        _falcon_h1,
        names={"pre_ff_layernorm": "ffn_norm."},  # some files have it without .weight
        changes=_falcon_changes,
    ),
    CheckpointFamily(
        "nemotron_h",
        "NemotronHForCausalLM",
        _nemotron_h,
        names={"fc1_latent_proj": "ffn_latent_down", "fc2_latent_proj": "ffn_latent_up"},
        changes=lambda c, name, block: _mamba2_ops(c.positive("n_groups"), name),
        rename=lambda c: "nemotron_h_moe" if "moe" in _nemotron_kinds(c) else "nemotron_h",
        settings=activation(RELU2),
    ),
    CheckpointFamily(
        "mamba",
        "MambaForCausalLM MambaLMHeadModel FalconMambaForCausalLM",
        _mamba,
        changes=_mamba_changes,
        base=_mamba_base,
    ),
    CheckpointFamily(
        "mamba2",
        "Mamba2ForCausalLM",
        _mamba2,
        changes=lambda c, name, block: _mamba2_ops(c.positive("n_groups", "ngroups", default=1), name),
        base=_mamba_base,
    ),
    CheckpointFamily("jamba", "JambaForCausalLM", _jamba, changes=_mamba_changes),
    CheckpointFamily(
        "minimax-01", "MiniMaxForCausalLM MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM", _minimax, names=_MINIMAX
    ),
)
