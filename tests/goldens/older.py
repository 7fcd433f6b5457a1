"""transformers models of early architectures with their own parameter names and layouts."""

import re

import numpy as np

CLASSES = {
    "bloom": "Bloom",
    "dbrx": "Dbrx",
    "falcon": "Falcon",
    "gpt2": "GPT2",
    "gptj": "GPTJ",
    "gptneox": "GPTNeoX",
    "mpt": "Mpt",
    "phi2": "Phi",
    "starcoder": "GPTBigCode",
}
# Names below the model, and below a layer, of all classes.
TOP = {
    "embed_tokens": "token_embd",
    "word_embeddings": "token_embd",
    "embed_in": "token_embd",
    "wte": "token_embd",
    "wpe": "position_embd",
    "word_embeddings_layernorm": "token_embd_norm",
    "final_layernorm": "output_norm",
    "final_layer_norm": "output_norm",
    "ln_f": "output_norm",
    "norm_f": "output_norm",
    "lm_head": "output",
    "embed_out": "output",
}
INSIDE = {
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "mlp.fc_in": "ffn_up",
    "mlp.fc_out": "ffn_down",
    "self_attn.q_proj": "attn_qkv",
    "self_attn.k_proj": "attn_qkv",
    "self_attn.v_proj": "attn_qkv",
    "self_attn.dense": "attn_output",
    "self_attention.query_key_value": "attn_qkv",
    "attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "attention.dense": "attn_output",
    "attn.c_attn": "attn_qkv",
    "attn.Wqkv": "attn_qkv",
    "norm_attn_norm.attn.Wqkv": "attn_qkv",
    "attn.c_proj": "attn_output",
    "attn.out_proj": "attn_output",
    "norm_attn_norm.attn.out_proj": "attn_output",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "input_layernorm": "attn_norm",
    "ln_mlp": "attn_norm",
    "ln_attn": "attn_norm_2",
    "ln_1": "attn_norm",
    "norm_1": "attn_norm",
    "norm_attn_norm.norm_1": "attn_norm",
    "ln_2": "ffn_norm",
    "norm_2": "ffn_norm",
    "norm_attn_norm.norm_2": "attn_output_norm",
    "post_attention_layernorm": "ffn_norm",
    "ffn.router.layer": "ffn_gate_inp",
    "ffn.experts.mlp.w1": "ffn_gate_exps",
    "ffn.experts.mlp.v1": "ffn_up_exps",
    "ffn.experts.mlp.w2": "ffn_down_exps",
}


def class_name(file):
    return CLASSES[file.architecture]


def options(file):
    """The configuration, by all names that the classes have for one thing."""
    width, heads, kv, n, ffn = (
        int(file.get(key))
        for key in (
            "embedding_length",
            "attention.head_count",
            "attention.head_count_kv",
            "block_count",
            "feed_forward_length",
        )
    )
    eps, base = float(file.get("attention.layer_norm_epsilon")), float(file.get("rope.freq_base"))
    part = int(file.get("rope.dimension_count")) / int(file.get("attention.key_length"))
    rope = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": part}
    context = int(file.get("context_length"))
    own = {
        "bloom": {"n_layer": n, "n_head": heads},
        "falcon": {"num_kv_heads": kv, "ffn_hidden_size": ffn, "parallel_attn": True, "bias": False}
        | {"multi_query": True, "new_decoder_architecture": "blk.0.attn_norm_2.weight" in file.tensors},
        "gpt2": {"n_embd": width, "n_head": heads, "n_layer": n, "n_positions": context, "n_inner": ffn},
        "starcoder": {"n_embd": width, "n_head": heads, "n_layer": n, "n_positions": context, "n_inner": ffn},
        "gptj": {"n_embd": width, "n_head": heads, "n_layer": n, "n_positions": context, "n_inner": ffn}
        | {"rotary_dim": int(file.get("rope.dimension_count"))},
        "gptneox": {"use_parallel_residual": bool(file.get("use_parallel_residual", True))},
        "mpt": {"d_model": width, "n_heads": heads, "n_layers": n, "max_seq_len": context}
        | {"expansion_ratio": ffn // width, "layer_norm_epsilon": eps},
        "dbrx": {"d_model": width, "n_heads": heads, "n_layers": n, "max_seq_len": context},
    }.get(file.architecture, {})
    if file.architecture == "mpt":
        alibi = {"alibi": True, "alibi_bias_max": int(file.get("attention.max_alibi_bias"))}
        own["attn_config"] = alibi | {"clip_qkv": float(file.get("attention.clamp_kqv"))}
    if file.architecture == "dbrx":
        own["attn_config"] = {"clip_qkv": float(file.get("attention.clamp_kqv")), "kv_n_heads": kv, "rope_theta": base}
        own["ffn_config"] = {"ffn_hidden_size": ffn, "hidden_size": width, "moe_top_k": 2}
        own["ffn_config"] |= {"moe_num_experts": int(file.get("expert_count")), "moe_normalize_expert_weights": 1.0}
    return {
        "vocab_size": len(file.tensors["token_embd.weight"]),
        "hidden_size": width,
        "num_hidden_layers": n,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "max_position_embeddings": context,
        "layer_norm_eps": eps,
        "layer_norm_epsilon": eps,
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attn_implementation": "eager",
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        **own,
    }


def source(file, name, parameter):
    """The array of a parameter of the model in transformers, and the names of the tensors that it came from."""
    found = re.fullmatch(r"\w+\.(?:layers|blocks|h)\.(\d+)\.(.*?)(?:\.(weight|bias))?", name)
    if found is None:
        *_, last, kind = name.split(".")
        full = f"{TOP[last]}.{kind}"
        return file.tensors[full], [full]
    i, inside, kind = found.groups()
    tensor = INSIDE[inside]
    if file.architecture == "starcoder" and tensor == "attn_qkv":
        return file.tensors[f"blk.{i}.attn_qkv.{kind}"], [f"blk.{i}.attn_qkv.{kind}"]
    full = f"blk.{i}.{tensor}.{kind or 'weight'}"
    array = file.tensors.get(full)
    if array is None:
        return None, []
    if tensor == "attn_qkv":
        array = qkv(file, inside, array)
    if file.architecture == "gpt2" and array.ndim == 2 and tensor.startswith(("attn_", "ffn_")):
        array = array.T  # its matrices are those of convolutions
    if tensor == "ffn_down_exps":
        array = array.swapaxes(1, 2)
    return array.reshape(parameter.shape), [full]


def qkv(file, inside, array):
    """The part of q, k or v, or all of them as the class has them: for each group of heads q, k, v."""
    heads, kv = int(file.get("attention.head_count")), int(file.get("attention.head_count_kv"))
    d = int(file.get("attention.key_length"))
    parts = np.split(array, [heads * d, (heads + kv) * d])
    if inside.startswith("self_attn."):
        return parts["qkv".index(inside[10])]
    if file.architecture in ("bloom", "falcon", "gptneox"):
        grouped = [x.reshape(kv, -1, d, *array.shape[1:]) for x in parts]
        return np.concatenate(grouped, axis=1).reshape(array.shape)
    return array
