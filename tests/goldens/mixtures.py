"""transformers models of mixtures with their own configuration or names."""

import numpy as np

CLASSES = {
    "bailingmoe2": "Glm4Moe",
    "cohere2moe": "Cohere2Moe",
    "deepseek": "DeepseekOcr2",
    "deepseek2-ocr": "DeepseekOcr2",
    "exaone-moe": "ExaoneMoe",
    "granite_swa": "GraniteSWA",
    "hy_v3": "HYV3",
    "laguna": "Laguna",
    "mellum": "Mellum",
    "muse-glimmer": "MuseGlimmer",
}


def options(file, windows):
    """The part of the configuration that these models have of their own."""
    name, n = file.architecture, int(file.get("block_count"))
    dense = sum(f"blk.{i}.ffn_gate.weight" in file.tensors for i in range(n))
    kinds = ["dense"] * dense + ["sparse"] * (n - dense)
    base, scale = float(file.get("rope.freq_base")), float(file.get("expert_weights_scale", 1.0))
    scaled = {"rope_type": "default", "rope_theta": base}
    if file.get("rope.scaling.type") == "yarn":
        original = int(file.get("rope.scaling.original_context_length"))
        scaled |= {"rope_type": "yarn", "factor": float(file.get("rope.scaling.factor"))}
        scaled["original_max_position_embeddings"] = original
    local = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base_swa", base))}
    if name == "bailingmoe2":
        return {"use_qk_norm": True, "norm_topk_prob": True}
    if name in ("deepseek", "deepseek2-ocr"):
        return {"mlp_layer_types": kinds, "topk_method": "greedy"}
    if name == "hy_v3":
        return {"mlp_layer_types": kinds, "router_scaling_factor": scale, "num_shared_experts": 1}
    if name == "exaone-moe":
        return {"mlp_layer_types": kinds, "num_shared_experts": 1}
    if name == "mellum":
        return {"rope_parameters": {"full_attention": scaled, "sliding_attention": local}}
    if name == "laguna":
        d, heads = int(file.get("attention.key_length")), np.atleast_1d(file.get("attention.head_count"))
        scaled["partial_rotary_factor"] = int(file.get("rope.dimension_count")) / d
        local["partial_rotary_factor"] = int(file.get("rope.dimension_count_swa", d)) / d
        gate = len(file.tensors["blk.0.attn_gate.weight"])
        return {
            "mlp_layer_types": kinds,
            "rope_parameters": {"full_attention": scaled, "sliding_attention": local},
            "num_attention_heads_per_layer": [int(x) for x in (heads if len(heads) == n else [*heads] * n)],
            "moe_routed_scaling_factor": scale,
            "gating": "per-head" if gate == int(heads[0]) else "per-element",
        } | ({} if windows else {"layer_types": ["full_attention"] * n})
    if name == "muse-glimmer":
        return {
            "layer_rope_theta": [base if window else 0 for window in windows],
            "output_multiplier": float(file.get("logit_scale")),
            "final_logit_softcapping": float(file.get("final_logit_softcapping")),
        }
    if name == "cohere2moe":
        inner = int(file.get("expert_feed_forward_length"))
        own = {"mlp_layer_types": kinds, "num_shared_experts": 1, "expert_selection_fn": "sigmoid"}
        own |= {"intermediate_size": inner, "prefix_dense_intermediate_size": int(file.get("feed_forward_length"))}
        own |= {"rms_norm_eps": None, "rope_theta": base, "norm_topk_prob": True}
        return own | {"logit_scale": float(file.get("logit_scale"))}
    if name == "granite_swa":
        turned = file.get("attention.rope_pattern", [True] * n)
        return {"layer_rope_theta": [base if yes else 0 for yes in turned]}
    return {}


def source(file, block, inside):
    """The array of a parameter, and the tensors that it came from; None for those that other models have, too."""
    names = {}
    if file.architecture == "laguna":
        names = {"self_attn.g_proj.weight": "attn_gate.weight"}
    if file.architecture == "muse-glimmer":
        names = {"self_attn.gate_proj.weight": "attn_gate.weight"}
    if file.architecture == "hy_v3":
        names = {"mlp.e_score_correction_bias": "exp_probs_b"}
    if file.architecture == "granite_swa":
        names = {"block_sparse_moe.router.weight": "ffn_gate_inp.weight"}
        names |= {"shared_mlp.input_linear.weight": "ffn_up_shexp.weight"}
        names |= {"shared_mlp.output_linear.weight": "ffn_down_shexp.weight"}
    return (file.tensors[block + names[inside]], [block + names[inside]]) if inside in names else None
