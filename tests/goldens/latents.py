"""transformers models with latent attention (MLA)."""

import re

import numpy as np

CLASSES = {
    "deepseek-v3": "DeepseekV3",
    "deepseek-v32": "DeepseekV32",
    "glm-dsa": "GlmMoeDsa",
    "deepseek-v2-lite": "DeepseekV2",
    "glm-flash": "Glm4MoeLite",
    "kimi-linear": "KimiLinear",
    "bailingmoe3": "BailingHybrid",
    "hy_v4": "HYV4",
    "mistral4": "Mistral4",
}
NAMES = {
    "q_a_proj": "attn_q_a",
    "q_a_layernorm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "f_proj": "ssm_f_a",
    "f_a_proj": "ssm_f_a",
    "f_b_proj": "ssm_f_b",
    "g_a_proj": "ssm_g_a",
    "g_b_proj": "ssm_g_b",
    "b_proj": "ssm_beta",
    "o_norm": "ssm_norm",
}

# Of the index; norms of k have the name in other models, too.
INDEX = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}


def options(file):
    """The part of the configuration that these models have of their own."""
    n_rot = int(file.get("rope.dimension_count"))
    k_dim = int(file.get("attention.key_length_mla", file.get("attention.key_length")))
    rope = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base"))}
    if file.get("rope.scaling.type") == "yarn":
        all_dim = float(file.get("rope.scaling.yarn_log_multiplier")) / 0.1
        original = int(file.get("rope.scaling.original_context_length"))
        rope |= {"rope_type": "yarn", "factor": float(file.get("rope.scaling.factor")), "beta_fast": 32.0}
        rope |= {"beta_slow": 1.0, "mscale": all_dim, "mscale_all_dim": all_dim}
        rope |= {"original_max_position_embeddings": original}
        if file.get("attention.temperature_scale"):
            rope["llama_4_scaling_beta"] = float(file.get("attention.temperature_scale"))
            rope["partial_rotary_factor"] = 1.0  # of head_dim below
    own = {}
    if n := file.get("attention.indexer.top_k"):
        own = {"index_topk": int(n), "index_n_heads": int(file.get("attention.indexer.head_count"))}
        own |= {"index_head_dim": int(file.get("attention.indexer.key_length"))}
        types = file.get("attention.indexer.types")
        own |= {} if types is None else {"indexer_types": ["full" if x else "shared" for x in types]}
    if file.architecture == "kimi-linear":
        kinds = ["full_attention" if n else "linear_attention" for n in file.get("attention.head_count_kv")]
        own = {"layer_types": kinds, "linear_head_dim": int(file.get("kda.head_dim"))}
        own |= {"linear_num_heads": int(file.get("attention.head_count"))}
        own |= {"linear_conv_kernel_dim": int(file.get("ssm.conv_kernel"))}
    if file.architecture == "bailingmoe3":
        kinds = ["full_attention" if n else "linear_attention" for n in file.get("attention.head_count_kv")]
        own = {"layer_types": kinds, "short_conv_kernel_size": int(file.get("ssm.conv_kernel"))}
        own |= {"kda_lower_bound": float(file.get("kda.gate_lower_bound")), "num_mtp_layers": 0}
    if file.architecture == "hy_v4":
        dense, n = int(file.get("leading_dense_block_count")), int(file.get("block_count"))
        own |= {
            "hc_mult": int(file.get("hyper_connection.count")),
            "hc_eps": float(file.get("hyper_connection.epsilon")),
        }
        own |= {"hc_magnitude": float(file.get("hyper_connection.magnitude"))}
        own |= {"swiglu_limit": float(file.get("swiglu_clamp_exp")[0]), "eos_token_id": 1, "bos_token_id": 1}
        kinds = {"mlp_layer_types": ["dense"] * dense + ["sparse"] * (n - dense)}
    return (
        own
        | {
            "num_key_value_heads": int(np.max(file.get("attention.head_count"))),
            "head_dim": int(file.get("kda.head_dim", n_rot)) if file.architecture == "bailingmoe3" else n_rot,
            "kv_lora_rank": int(file.get("attention.kv_lora_rank")),
            "q_lora_rank": int(file.get("attention.q_lora_rank")) or None,
            "qk_rope_head_dim": n_rot,
            "qk_nope_head_dim": k_dim - n_rot,
            "v_head_dim": int(file.get("attention.value_length_mla", file.get("attention.value_length"))),
            "rope_parameters": rope,
            "partial_rotary_factor": 1.0,
            "norm_topk_prob": bool(file.get("expert_weights_norm", False)),
            "n_shared_experts": 1,
            "topk_method": "greedy",
            "mlp_layer_types": None,
        }
        | (kinds if file.architecture == "hy_v4" else {})
    )


def streams(file, name):
    """Coefficients of Hunyuan 4's streams; None for other parameters."""
    if file.architecture != "hy_v4":
        return None
    if found := re.fullmatch(r"model\.hc_head\.hc_(\w+)", name):
        tensor = f"output_hc_{found[1]}.weight"
    elif found := re.fullmatch(r"model\.layers\.(\d+)\.(attn|ffn)_hc\.(\w+)", name):
        tensor = f"blk.{found[1]}.hc_{found[2]}_{found[3]}.weight"
    elif found := re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.gate_proj\.weight", name):
        tensor = f"blk.{found[1]}.attn_gate.weight"
    else:
        return None
    return file.tensors[tensor], [tensor]


def source(file, block, last, kind):
    """The array of a parameter, and the tensors that it came from; None for those that other models have, too."""
    if last == "conv1d":
        names = [f"{block}ssm_conv1d_{x}.weight" for x in "qkv"]
        parts = [file.tensors[name] for name in names]
        return np.concatenate([x.reshape(-1, 1, x.shape[-1]) for x in parts]), names
    if kind == "A_log":
        rates = np.log(np.abs(file.tensors[f"{block}ssm_a"]))
        shape = (-1,) if file.architecture == "bailingmoe3" else (1, 1, -1, 1)
        return rates.reshape(shape), [f"{block}ssm_a"]
    if last == "g_proj":
        names = [f"{block}{x}.weight" for x in ("attn_gate", "ssm_g_a")]
        name = next(name for name in names if name in file.tensors)
        return file.tensors[name], [name]
    if kind == "dt_bias":
        return file.tensors[f"{block}ssm_dt.bias"], [f"{block}ssm_dt.bias"]
    if kind in ("weight", "bias") and last in INDEX:
        name = f"{block}indexer.{INDEX[last]}.{kind}"
        return (file.tensors[name], [name]) if name in file.tensors else None
    if last in NAMES:
        name = f"{block}{NAMES[last]}.weight"
        return file.tensors[name], [name]
    if last == "kv_b_proj":
        if (whole := f"{block}attn_kv_b.weight") in file.tensors:
            return file.tensors[whole], [whole]
        names = [f"{block}attn_{x}_b.weight" for x in "kv"]
        k, v = (file.tensors[name] for name in names)
        both = np.concatenate([k.swapaxes(1, 2), v], axis=1)
        return both.reshape(-1, both.shape[2]), names
    return None
