"""transformers models with recurrent layers: class, configuration, and tensor names."""

import re

import numpy as np

from tests.goldens import classes

CLASSES = {
    "falcon-h1": "FalconH1",
    "granitehybrid": "GraniteMoeHybrid",
    "jamba": "Jamba",
    "lfm2": "Lfm2",
    "lfm2moe": "Lfm2Moe",
    "mamba": "Mamba",
    "mamba2": "Mamba2",
    "minimax-01": "MiniMax",
    "nemotron_h": "NemotronH",
    "nemotron_h_moe": "NemotronH",
    "qwen35": "Qwen3_5",
    "qwen35moe": "Qwen3_5Moe",
    "qwen3next": "Qwen3Next",
}
PLUS_ONE = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")
APART = ("qwen35", "qwen35moe", "qwen4exp")  # heads of v that share a head of k
TOP = {
    "embed_tokens": "token_embd",
    "embeddings": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "final_layernorm": "output_norm",
    "embedding_norm": "token_embd_norm",
}
BLOCK = {
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "norm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm",
    "q_layernorm": "attn_q_norm",
    "k_layernorm": "attn_k_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
    "gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "output_linear": "ffn_down_shexp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "fc1_latent_proj": "ffn_latent_down",
    "fc2_latent_proj": "ffn_latent_up",
    "in_proj": "ssm_in",
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_b": "ssm_beta",
    "in_proj_a": "ssm_alpha",
    "in_proj_ba": "ssm_ba",
    "conv1d": "ssm_conv1d",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "out_proj": "ssm_out",
    "dt_layernorm": "ssm_dt_norm",
    "b_layernorm": "ssm_b_norm",
    "c_layernorm": "ssm_c_norm",
    "self_attn.norm": "attn_norm_2",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.output_gate": "attn_gate",
}


def class_name(file):
    return "FalconMamba" if file.get("ssm.dt_b_c_rms") else CLASSES[file.architecture]


def options(file):
    """The configuration."""
    arch, n = file.architecture, int(file.get("block_count")) - int(file.get("nextn_predict_layers", 0))
    kernel, inner, state, heads, groups = (
        int(file.get(f"ssm.{x}") or 1)
        for x in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    )
    kv = np.broadcast_to(file.get("attention.head_count_kv"), n)
    if arch.startswith("mamba"):
        eps = float(file.get("attention.layer_norm_rms_epsilon"))
        out = {"hidden_size": int(file.get("embedding_length")), "vocab_size": len(file.tensors["token_embd.weight"])}
        out |= {"num_hidden_layers": n, "state_size": state, "conv_kernel": kernel, "layer_norm_epsilon": eps}
        out |= {"tie_word_embeddings": "output.weight" not in file.tensors, "mixer_rms_eps": eps, "n_groups": groups}
        if arch == "mamba2":
            return out | {"num_heads": heads, "head_dim": inner // heads}
        return out | {"time_step_rank": heads, "intermediate_size": inner}
    out = classes.options(file)
    if arch.startswith("qwen"):
        full = [(i + 1) % 4 == 0 for i in range(n)]
        out |= {"layer_types": ["full_attention" if one else "linear_attention" for one in full]}
        out |= {"linear_num_key_heads": groups, "linear_num_value_heads": heads, "linear_conv_kernel_dim": kernel}
        out |= {"linear_key_head_dim": state, "linear_value_head_dim": inner // heads}
        sections = {"mrope_section": [int(x) for x in file.get("rope.dimension_sections", [2, 1, 1])[:3]]}
        out["rope_parameters"] |= sections if arch != "qwen3next" else {}
    if arch.startswith("lfm2"):
        out |= {"layer_types": ["full_attention" if one else "conv" for one in kv], "conv_L_cache": 3}
        out |= {"block_auto_adjust_ff_dim": False, "num_dense_layers": int(file.get("leading_dense_block_count", 0))}
    if arch in ("granitehybrid", "falcon-h1"):
        out |= {"mamba_n_heads": heads, "mamba_n_groups": groups, "mamba_d_state": state, "mamba_d_conv": kernel}
        out |= {"mamba_d_head": inner // heads, "mamba_d_ssm": inner, "mamba_expand": inner // out["hidden_size"]}
        out |= {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
        out |= {"layer_types": ["attention" if one else "mamba" for one in kv]} if arch == "granitehybrid" else {}
    if arch.startswith("nemotron_h"):
        ffn = ["moe" if "n_routed_experts" in out else "mlp" if f else "" for f in file.get("feed_forward_length")]
        kinds = [
            "attention" if k else f if w else "mamba"
            for k, f, w in zip(kv, ffn, file.get("feed_forward_length"), strict=True)
        ]
        out |= {"layers_block_type": kinds, "ssm_state_size": state, "mamba_num_heads": heads, "n_groups": groups}
        out |= {"mamba_head_dim": inner // heads, "conv_kernel": kernel, "layer_norm_epsilon": out["norm_eps"]}
        out |= {"moe_shared_expert_intermediate_size": out.get("shared_intermediate_size", 8)}
        out |= {"moe_latent_size": file.get("moe_latent_size"), "num_hidden_layers": n}
    if arch == "minimax-01":
        kinds = ("linear_attention", "full_attention")
        out |= {
            "layer_types": [kinds[i % 2] for i in range(n)],
            "intermediate_size": int(file.get("feed_forward_length")),
        }
        out |= {f"{x}_alpha_factor": float(file.get("residual_scale")) for x in ("full_attn", "linear_attn", "mlp")}
    if arch == "jamba":
        out |= {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        out |= {"mamba_d_state": state, "mamba_d_conv": kernel, "mamba_dt_rank": heads, "use_mamba_kernels": False}
        out |= {"mamba_expand": inner // out["hidden_size"]}
    return out


def source(file, name, parameter):
    """The array of a parameter of the model in transformers, and the names of the tensors that it came from."""
    arch, tensors = file.architecture, file.tensors
    found = re.fullmatch(r"\w+\.layers\.(\d+)\.(.*)", name)
    if found is None:
        tensor = f"{TOP[name.split('.')[-2]]}.weight"
        return _minus_one(arch, tensor, tensors[tensor]), [tensor]
    block, inside = f"blk.{found[1]}.", found[2]
    *path, kind = inside.split(".")

    def get(short):
        full = block + short
        return (full, tensors[full]) if full in tensors else (f"{full}.weight", tensors[f"{full}.weight"])

    if kind == "A_log":
        full, array = get("ssm_a")
        return np.log(-_heads(file, array, 0, 1)).reshape(parameter.shape), [full]
    if kind == "D":
        full, array = get("ssm_d")
        return array.reshape(parameter.shape), [full]
    if kind == "dt_bias":
        full, array = get("ssm_dt.bias")
        return _heads(file, array, 0, 1), [full]
    if kind in ("e_score_correction_bias", "expert_bias"):
        full, array = get("exp_probs_b.bias")
        return array, [full]
    if kind in ("gate_up_proj", "down_proj", "up_proj"):
        if arch == "nemotron_h_moe" and kind == "up_proj":
            full, array = get("ffn_up_exps")
            return array, [full]
        return classes.experts(file, block, kind)
    last = path[-1]
    if last == "in_proj_qkvz" and f"{block}ssm_in.weight" in file.tensors:
        return file.tensors[f"{block}ssm_in.weight"], [f"{block}ssm_in.weight"]
    if last == "in_proj_qkvz":
        return _next_qkvz(file, block)
    if last == "input_linear":
        names = [f"{block}ffn_{x}_shexp.weight" for x in ("gate", "up")]
        return np.concatenate([tensors[one] for one in names]), names
    short = BLOCK.get(".".join(path[-2:])) or BLOCK[last]
    if any(x in ("shared_expert", "shared_experts") for x in path[:-1]):
        short += "_shexp"
    if last == "norm" and len(path) > 1 and arch != "minimax-01":
        short = "ssm_norm"
    if last == "post_attention_layernorm" and arch in PLUS_ONE:
        short = "post_attention_norm"
    full, array = get(f"{short}.bias" if kind == "bias" else short)
    return _changed(file, full, short, array, kind).reshape(parameter.shape), [full]


def _changed(file, full, short, array, kind):
    """Undo the changes of the converter of the family."""
    arch = file.architecture
    if arch in APART:
        n_k, n_v, head = (int(file.get(f"ssm.{x}")) for x in ("group_count", "time_step_rank", "state_size"))
        if short in ("attn_qkv", "ssm_conv1d"):
            keys = 2 * n_k * head
            array = np.concatenate([array[:keys], _heads(file, array[keys:], 0, head)])
        elif short in ("attn_gate", "ssm_alpha", "ssm_beta"):
            array = _heads(file, array, 0, len(array) // n_v)
        elif short == "ssm_out":
            array = _heads(file, array, 1, head)
    if arch == "granitehybrid" and short in ("attn_q", "attn_k"):
        n = len(array) // int(file.get("attention.key_length"))
        array = array.reshape(n, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
    return _minus_one(arch, full, array)


def _heads(file, array, axis, head):
    """Heads of v that share a head of k, brought side by side: Qwen 3.5's files have them apart."""
    if file.architecture not in APART:
        return array
    n_k = int(file.get("ssm.group_count"))
    shape = array.shape
    parts = array.reshape(*shape[:axis], -1, n_k, head, *shape[axis + 1 :])
    return parts.swapaxes(axis, axis + 1).reshape(shape)


def _next_qkvz(file, block):
    """Qwen3-Next's one matrix: for each head of k its q, k, v and z."""
    n_k, head = (int(file.get(f"ssm.{x}")) for x in ("group_count", "state_size"))
    names = [f"{block}attn_qkv.weight", f"{block}attn_gate.weight"]
    qkv, z = (file.tensors[name] for name in names)
    q, k, v = np.split(qkv, [n_k * head, 2 * n_k * head])
    parts = [x.reshape(n_k, -1, qkv.shape[1]) for x in (q, k, v, z)]
    return np.concatenate(parts, axis=1).reshape(-1, qkv.shape[1]), names


def _minus_one(arch, name, array):
    return array - 1 if arch in PLUS_ONE and "norm" in name and "ssm_norm" not in name else array
