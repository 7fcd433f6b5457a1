"""transformers models with an index that chooses blocks, or next to windows."""

import numpy as np

KEYS = {"n_heads": "head_count", "head_dim": "key_length", "topk_blocks": "top_k"}
KEYS |= {"block_size": "block_size", "local_blocks": "local_blocks"}


def options(file):
    """The part of the configuration that these models have of their own."""
    if file.architecture == "dots3note":
        return beside_windows(file)
    if file.architecture != "minimax-m3":
        return {}
    n, dense = int(file.get("block_count")), int(file.get("leading_dense_block_count"))
    out = {f"index_{a}": int(file.get(f"attention.indexer.{b}")) for a, b in KEYS.items()}
    out |= {"intermediate_size": int(file.get("expert_feed_forward_length"))}
    out |= {"dense_intermediate_size": int(file.get("feed_forward_length"))}
    out |= {"rotary_dim": int(file.get("rope.dimension_count"))}
    out |= {"layer_types": ["full_attention"] * dense + ["minimax_m3_sparse"] * (n - dense)}
    return out | {"mlp_layer_types": ["dense"] * dense + ["sparse"] * (n - dense)}


def beside_windows(file):
    """The configuration of dots3-note."""
    kinds = ["sliding_attention" if x else "indexed_attention" for x in file.get("attention.sliding_window_pattern")]
    heads, n_rot = [int(x) for x in file.get("attention.head_count")], int(file.get("rope.dimension_count"))
    wide = kinds.index("sliding_attention")
    out = {"layer_types": kinds, "num_attention_heads": heads[0], "num_key_value_heads": heads[0]}
    out |= {"swa_num_attention_heads": heads[wide], "swa_num_key_value_heads": heads[wide]}
    for own, end in (("", ""), ("swa_", "_swa")):
        k_dim = int(file.get(f"attention.key_length_mla{end}"))
        out |= {f"{own}head_dim": k_dim, f"{own}qk_nope_head_dim": k_dim - n_rot, f"{own}qk_rope_head_dim": n_rot}
        out |= {f"{own}v_head_dim": int(file.get(f"attention.value_length_mla{end}"))}
        out |= {f"{own}kv_lora_rank": int(file.get(f"attention.kv_lora_rank{end}"))}
        out |= {f"{own}q_lora_rank": int(file.get("attention.q_lora_rank"))}
    out["shared_experts_intermediate_size"] = int(file.get("expert_shared_feed_forward_length"))
    bases = {"indexed_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"}
    bases = {kind: float(file.get(key)) for kind, key in bases.items()}
    out["rope_parameters"] = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    return out


def source(file, block, inside):
    """The array of a parameter, and the tensors that it came from; None for those that other models have, too."""
    if file.architecture == "dots3note":
        return latent(file, block, inside)
    if file.architecture != "minimax-m3":
        return None
    if ".indexer." in inside:
        name = f"{block}indexer.{inside.split('.indexer.')[1]}"
        return file.tensors[name] - ("norm" in name), [name]
    if inside.endswith("gate_up_proj.weight"):
        end = "_shexp" if "shared" in inside else ""
        names = [f"{block}ffn_{x}{end}.weight" for x in ("gate", "up")]
        return np.concatenate([file.tensors[name] for name in names]), names
    return None


def latent(file, block, inside):
    """Converters multiply norms of latents by what transformers multiplies the latents by."""
    width = int(file.get("embedding_length"))
    for name, ours in (("q_a_layernorm", "attn_q_a_norm"), ("kv_a_layernorm", "attn_kv_a_norm")):
        if f".{name}." in inside:
            array = file.tensors[f"{block}{ours}.weight"]
            return array / np.sqrt(width / len(array)), [f"{block}{ours}.weight"]
    for name, ours in (("k_rope_only_layernorm", "attn_k_norm"), ("g_proj", "attn_gate")):
        if f".{name}." in inside:
            return file.tensors[f"{block}{ours}.weight"], [f"{block}{ours}.weight"]
    return None
