"""transformers models whose window layers have their own heads, gates or sinks."""

from tests.cases.tiny import LLAMA3


def options(file):
    """The part of the configuration that these models have of their own."""
    n = int(file.get("block_count")) - int(file.get("nextn_predict_layers", 0))
    if file.architecture == "afmoe":
        return {
            "mup_enabled": True,
            "route_scale": float(file.get("expert_weights_scale")),
            "num_dense_layers": int(file.get("leading_dense_block_count")),
            "num_shared_experts": 1,
        }
    if file.architecture == "mimo2":
        k_dim = int(file.get("attention.key_length"))
        part = {"rope_type": "default", "partial_rotary_factor": int(file.get("rope.dimension_count")) / k_dim}
        bases = {"full_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"}
        dense = int(file.get("leading_dense_block_count"))
        return {
            "num_key_value_heads": int(min(file.get("attention.head_count_kv"))),
            "v_head_dim": int(file.get("attention.value_length")),
            "attention_value_scale": float(file.get("attention.value_scale")),
            "mlp_layer_types": ["dense"] * dense + ["sparse"] * (n - dense),
            "rope_parameters": {kind: part | {"rope_theta": float(file.get(key))} for kind, key in bases.items()},
        }
    if file.architecture == "step35":
        dense, limits = int(file.get("leading_dense_block_count")), ("swiglu_clamp_exp", "swiglu_clamp_shexp")
        experts, shared = ([float(x) for x in file.get(key)] for key in limits)
        full = {"rope_type": "llama3", **LLAMA3, "partial_rotary_factor": 0.5}
        local = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base_swa"))}
        return {
            "num_attention_heads": int(min(file.get("attention.head_count"))),
            "num_sliding_attention_heads": int(max(file.get("attention.head_count"))),
            "share_expert_dim": int(file.get("expert_shared_feed_forward_length")),
            "moe_router_scaling_factor": float(file.get("expert_weights_scale")),
            "mlp_layer_types": ["dense"] * dense + ["sparse"] * (n - dense),
            "swiglu_limits": experts,
            "swiglu_limits_shared": shared,
            "rope_parameters": {
                "full_attention": full | {"rope_theta": float(file.get("rope.freq_base"))},
                "sliding_attention": local,
            },
        }
    return {}


def source(file, block, inside):
    """The array of a parameter, and the tensors that it came from; None for those that other models have, too."""
    if file.architecture == "step35" and inside == "self_attn.g_proj.weight":
        return file.tensors[f"{block}attn_gate.weight"], [f"{block}attn_gate.weight"]
    if file.architecture != "afmoe":
        return None
    names = {"self_attn.gate_proj.weight": "attn_gate.weight", "mlp.router.gate.weight": "ffn_gate_inp.weight"}
    names |= {"mlp.expert_bias": "exp_probs_b.bias", "pre_mlp_layernorm.weight": "ffn_norm.weight"}
    return (file.tensors[block + names[inside]], [block + names[inside]]) if inside in names else None
