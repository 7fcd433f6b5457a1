"""transformers model of Qwen 3.8 Flash Next."""

import re

import numpy as np

from tests.goldens import classes, hybrids

CLASSES = {"qwen4exp": "Qwen4Exp"}
# Made by the class from its configuration: the file must say the same.
CONSTANTS = {
    "layer_multipliers": "ple.layer_multipliers",
    "ngram_heads_vocab_sizes": "ple.head_vocab_sizes",
    "ngram_heads_offsets": "ple.head_offsets",
}
NAMES = {
    "attn_hyper_connection.hc_norm": "hc_attn_norm",
    "attn_hyper_connection.input_mix_weight_down": "hc_attn_down",
    "attn_hyper_connection.input_mix_weight_up": "hc_attn_up",
    "attn_hyper_connection.block_inject_weight": "hc_attn_inject",
    "mlp_hyper_connection.hc_norm": "hc_ffn_norm",
    "mlp_hyper_connection.input_mix_weight_down": "hc_ffn_down",
    "mlp_hyper_connection.input_mix_weight_up": "hc_ffn_up",
    "mlp_hyper_connection.block_inject_weight": "hc_ffn_inject",
    "ple.key_proj": "ple_key",
    "ple.value_proj": "ple_value",
    "ple.norm_key": "ple_norm_key",
    "ple.norm_query": "ple_norm_query",
    "ple.norm_conv": "ple_norm_conv",
    "ple.conv1d": "ple_conv1d",
    "self_attn.indexer.q_layernorm": "indexer.q_norm",
    "self_attn.indexer.k_layernorm": "indexer.k_norm",
}
TOP = {
    "model.hyper_connection_mixer.hc_norm.weight": "output_hc_norm.weight",
    "model.hyper_connection_mixer.input_mix_weight_down.weight": "output_hc_down.weight",
    "model.hyper_connection_mixer.input_mix_weight_up.weight": "output_hc_up.weight",
}


def class_name(file):
    return CLASSES[file.architecture]


def options(file):
    """The configuration."""
    n, indexer = int(file.get("block_count")), "attention.indexer"
    kernel, inner, state, heads, groups = (
        int(file.get(f"ssm.{x}")) for x in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    )
    out = classes.options(file)
    out["rope_parameters"] |= {"mrope_section": [int(x) for x in file.get("rope.dimension_sections")[:3]]}
    every = [int(x) for x in file.get("attention.compress_ratios")]
    return out | {
        "layer_types": ["indexed_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(n)],
        "linear_num_key_heads": groups,
        "linear_num_value_heads": heads,
        "linear_conv_kernel_dim": kernel,
        "linear_key_head_dim": state,
        "linear_value_head_dim": inner // heads,
        "output_gate_type": "sigmoid",
        "hc_count": int(file.get("hyper_connection.count")),
        "hc_lowrank": int(file.get("hyper_connection.low_rank")),
        "ple_layer_ids": [int(x) + 1 for x in file.get("ple.layers")],
        "ple_conv_kernel_size": int(file.get("ple.conv_kernel")),
        "ngram_size": int(file.get("ple.ngram_size")),
        "heads_per_ngram": int(file.get("ple.heads_per_ngram")),
        "ngram_vocab_size_base": 40,
        "eos_token_id": int(file.get("ple.eos_token_id")),
        "indexer_n_heads": int(file.get(f"{indexer}.head_count")),
        "indexer_kv_heads": 1,
        "indexer_head_dim": int(file.get(f"{indexer}.key_length")),
        "indexer_budget": int(file.get(f"{indexer}.top_k")),
        "indexer_compress_ratio": max(every),
    }


def is_constant(file, name, parameter):
    """True if a parameter is a constant that the metadata also has, not a weight."""
    key = CONSTANTS.get(name.rpartition(".")[2]) if file.architecture in CLASSES else None
    if key is not None:
        assert parameter.tolist() == [int(x) for x in file.get(key)], name
    return key is not None


def source(file, name, parameter):
    """The array of a parameter of the model in transformers, and the names of the tensors that it came from."""
    tensors = file.tensors
    if name in TOP:
        return tensors[TOP[name]] - ("norm" in name), [TOP[name]]
    if name.endswith("ngram_embedding.weight"):
        return tensors["per_layer_token_embd.weight"], ["per_layer_token_embd.weight"]
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.weight", name)
    if found is not None:
        block, inside = f"blk.{found[1]}.", found[2]
        if inside == "self_attn.indexer.index_qk_proj":
            names = [f"{block}indexer.{x}_proj.weight" for x in "qk"]
            return np.concatenate([tensors[one] for one in names]), names
        if inside in NAMES:
            full = f"{block}{NAMES[inside]}.weight"
            return (tensors[full] - ("norm" in full)).reshape(parameter.shape), [full]
    return hybrids.source(file, name, parameter)
