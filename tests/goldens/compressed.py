"""transformers model of DeepSeek V4."""

import re

KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention"}
KEYS = {
    "hc_mult": "hyper_connection.count",
    "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
    "o_groups": "attention.output_group_count",
    "o_lora_rank": "attention.output_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "intermediate_size": "expert_feed_forward_length",
}
NAMES = {
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_norm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_proj.weight": "attn_kv.weight",
    "self_attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "self_attn.o_a_proj.weight": "attn_output_a.weight",
    "self_attn.o_b_proj.weight": "attn_output_b.weight",
    "self_attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b.weight",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj.weight",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
}
for theirs, ours in (("compressor.", "attn_compressor"), ("compressor.indexer.", "indexer_compressor")):
    for part, name in (("kv_proj.weight", "kv"), ("gate_proj.weight", "gate"), ("kv_norm.weight", "norm")):
        NAMES[f"self_attn.{theirs}{part}"] = f"{ours}_{name}.weight"
    NAMES[f"self_attn.{theirs}position_bias"] = f"{ours}_ape.weight"
NAMES |= {f"{x}_hc.{part}": f"hc_{x}_{part}.weight" for x in ("attn", "ffn") for part in ("fn", "base", "scale")}


def options(file):
    """The part of the configuration that it has of its own."""
    if file.architecture != "deepseek4":
        return {}
    every, n = [int(x) for x in file.get("attention.compress_ratios")], int(file.get("block_count"))
    n_hash = int(file.get("hash_layer_count"))
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": max(every)}
    far = {"rope_type": "yarn", "attention_factor": 1.0, "factor": float(file.get("rope.scaling.factor"))}
    far["original_max_position_embeddings"] = int(file.get("rope.scaling.original_context_length"))
    ropes = {"main": {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base"))}}
    ropes["compress"] = far | {"rope_theta": float(file.get("attention.compress_rope_freq_base"))}
    share = int(file.get("rope.dimension_count")) / int(file.get("attention.key_length"))
    return {name: int(file.get(key)) for name, key in KEYS.items()} | {
        "hc_eps": float(file.get("hyper_connection.epsilon")),
        "layer_types": [KINDS.get(x, "heavily_compressed_attention") for x in every],
        "compress_rates": rates,
        "mlp_layer_types": ["hash_moe"] * n_hash + ["moe"] * (n - n_hash),
        "swiglu_limit": float(file.get("swiglu_clamp_exp")[0]),
        "partial_rotary_factor": share,
        "rope_parameters": {kind: rope | {"partial_rotary_factor": share} for kind, rope in ropes.items()},
    }


def source(file, name):
    """The array of a parameter, and the tensors that it came from; None for those that other models have, too."""
    if match := re.fullmatch(r"model\.hc_head\.hc_(\w+)", name):
        found = f"output_hc_{match[1]}.weight"
        return file.tensors[found], [found]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    if file.architecture != "deepseek4" or not match or match[2] not in NAMES:
        return None
    found = f"blk.{match[1]}.{NAMES[match[2]]}"
    return file.tensors[found], [found]
