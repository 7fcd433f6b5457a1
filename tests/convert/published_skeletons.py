"""Models with unusual skeletons as their makers publish them."""

import numpy as np

from tests.convert.published import LLAMA, arch, facts, neox_rows, plain, unpaired


def nanbeige(file):
    more = {"head_dim": 16, "num_loops": 3, "skip_loop_final_norm": False, "loop_loss_weights": []}
    return "NanbeigeForCausalLM", plain(file, LLAMA, each=unpaired(file)), facts(file) | more


def talkie(file):
    """Heads turn in the other direction, and the scale of the logits is a tensor."""

    def each(name, value):
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            heads = value.reshape(4, 2, 8, 64).copy()
            heads[:, 1] *= -1
            return heads.reshape(value.shape)
        return value.reshape(-1) if name.endswith("attn_q_norm.weight") else value

    table = {
        "token_embd": "model.embed",
        "output.weight": "lm_head",
        "blk.": "model.blocks.",
        **{f"attn_{x[0]}.": f"attn.attn_{x}." for x in ("query", "key", "value")},
        "attn_output.weight": "attn.attn_resid.weight",
        "attn_output.scale": "attn_gain.a_g",
        "attn_q_norm.weight": "attn.head_gain.head_g",
        "ffn_gate.": "mlp.mlp_gate.",
        "ffn_up.": "mlp.mlp_linear.",
        "ffn_down.weight": "mlp.mlp_resid.weight",
        "ffn_down.scale": "mlp_gain.a_g",
        "layer_output_scale.weight": "embed_skip.a_g",
    }
    arrays = plain(file, table, each=each)
    arrays["lm_head_gain.w_g"] = np.float32([file.metadata["talkie.logit_scale"]])
    config = facts(file) | {"head_dim": 16}
    del config["rms_norm_eps"]
    return "TalkieForCausalLM", arrays, config


def kinds(file):
    flags = file.metadata[f"{arch(file)}.attention.sliding_window_pattern"]
    return ["sliding_attention" if flag else "full_attention" for flag in flags]


def spark(file):
    table = LLAMA | {"attn_qkv": "self_attn.q_k_v_proj", "attn_gate": "self_attn.g_proj"}
    table["attn_output."] = "self_attn.out_proj."
    part = {"rope_type": "default"}
    rope = {
        "full_attention": part | {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
        "sliding_attention": part | {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    }
    config = facts(file) | {"head_dim": 16, "sliding_window": 8, "layer_types": kinds(file), "hidden_act": "gelu"}
    del config["rope_theta"]
    config |= {"headwise_attn_output_gate": True, "gate_attn_act_mode": "sigmoid", "rope_parameters": rope}
    return "Spark2_5ForCausalLM", plain(file, table), config


def maple(file):
    config = facts(file) | {"head_dim": 16, "sliding_window": 7, "layer_types": kinds(file)}
    config |= {"partial_rotary_factor": 0.5, "nope_on_global_attention": True, "norm_topk_prob": True}
    return "MapleForCausalLM", plain(file, LLAMA), config


def chameleon(file):
    """The image tokenizer is left out; norms are those of halves, one row for each head."""
    back = unpaired(file)

    def each(name, value):
        if "attn_q_norm" in name or "attn_k_norm" in name:
            return neox_rows(value.T, 1).T
        return back(name, value)

    arrays = plain(file, LLAMA, each=each)
    arrays["model.vqmodel.encoder.conv_in.weight"] = np.zeros((4, 4), np.float32)
    more = {"swin_norm": False, "vq_config": {"embed_dim": 256}, "vocabulary_map": {"<image>": 8}}
    return "ChameleonForConditionalGeneration", arrays, facts(file) | more


def dream(file):
    return "DreamModel", plain(file, LLAMA), facts(file) | {"mask_token_id": 300}


def rnd1(file):
    return "RND1", plain(file, LLAMA), facts(file) | {"head_dim": 16, "mask_token_id": 300, "norm_topk_prob": True}


def llada(file):
    """OLMo's names of settings and tensors; halves turn."""
    table = {
        "token_embd": "model.transformer.wte",
        "output_norm": "model.transformer.ln_f",
        "output.": "model.transformer.ff_out.",
        "blk.": "model.transformer.blocks.",
        "ffn_norm": "ff_norm",
        "attn_output.": "attn_out.",
        **{f"attn_{x}.": f"{x}_proj." for x in "qkv"},
        "ffn_gate.": "ff_proj.",
        "ffn_up.": "up_proj.",
        "ffn_down.": "ff_out.",
    }
    config = {
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 96,
        "mlp_ratio": 4,
        "max_sequence_length": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "mask_token_id": 300,
        "activation_type": "silu",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "alibi": False,
        "attention_layer_norm": False,
        "weight_tying": False,
        "block_group_size": 1,
        "embedding_size": 320,
        "scale_logits": False,
    }
    return "LLaDAModelLM", plain(file, table, each=unpaired(file)), config


def llada_moe(file):
    config = facts(file) | {"mask_token_id": 300, "expert_intermediate_size": 24, "head_dim": 16}
    del config["moe_intermediate_size"]
    return "LLaDAMoEModelLM", plain(file, LLAMA), config


ROWS = {
    "dream": dream,
    "rnd1": rnd1,
    "llada": llada,
    "llada-moe": llada_moe,
    "chameleon": chameleon,
    "nanbeige": nanbeige,
    "talkie": talkie,
    "spark2_5": spark,
    "maple": maple,
}
