"""Models in which an index chooses blocks, or works beside windows, and two that see, as their makers publish them."""

import numpy as np

from tests.convert.published import LLAMA, SHARED, facts, plain
from tests.convert.published_more import indexed


def minimax_m3(file):
    """The index's settings are an object of their own, and norms are stored 1 lower."""
    table = {old: new.replace("model.layers", "language_model.model.layers") for old, new in LLAMA.items()} | {
        "token_embd": "language_model.model.embed_tokens",
        "output_norm": "language_model.model.norm",
        "output.": "language_model.lm_head.",
        "ffn_gate_inp.": "block_sparse_moe.gate.",
        "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
        **{old: new.replace("mlp", "block_sparse_moe") for old, new in SHARED.items()},
        **{f"indexer.{x}": f"self_attn.index_{x}" for x in ("q_proj", "k_proj", "q_norm", "k_norm")},
    }
    lower = lambda name, x: x - np.float32(1) if "norm" in name else x  # noqa: E731
    arrays = plain(file, table, "block_sparse_moe.experts.{e}.{x}", lower)
    parts = {".gate.weight": ".w1.weight", ".up.weight": ".w3.weight", ".down.weight": ".w2.weight"}
    for name in [name for name in arrays if ".experts." in name]:
        stem = name[: name.rindex(".", 0, -len(".weight"))]
        arrays[stem + parts[name.removeprefix(stem)]] = arrays.pop(name)
    arrays["patch_merge_mlp.linear_1.weight"] = np.zeros((2, 2))
    config = facts(file) | {
        "head_dim": 16,
        "intermediate_size": 24,
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 24,
        "n_shared_experts": 1,
        "rotary_dim": 8,
        "hidden_act": "swigluoai",
        "moe_layer_freq": [0, 1, 1],
        "tie_word_embeddings": False,
        "sparse_attention_config": {
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 16,
            "sparse_topk_blocks": 3,
            "sparse_block_size": 4,
            "sparse_local_block": 1,
        },
    }
    left = ("first_k_dense_replace", "moe_intermediate_size")
    return (
        "MiniMaxM3SparseForConditionalGeneration",
        arrays,
        {"text_config": {k: config[k] for k in config.keys() - left}},
    )


def dots3note(file):
    """Sizes of layers with a window have names of their own, and latents grow after their norms."""
    _, arrays, config = indexed(file)
    width = config["hidden_size"]
    for name in list(arrays):
        if name.endswith(("q_a_layernorm.weight", "kv_a_layernorm.weight")):
            arrays[name] = arrays[name] / np.float32(np.sqrt(width / len(arrays[name])))
        renamed = name.replace("self_attn.k_norm", "self_attn.k_rope_only_layernorm").replace(
            "attn_gate", "self_attn.g_proj"
        )
        arrays[renamed] = arrays.pop(name)
    config |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 6,
        "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"],
        "sliding_window_size": 8,
        "swa_rope_theta": 500.0,
        "swa_num_attention_heads": 2,
        "swa_q_lora_rank": 20,
        "swa_kv_lora_rank": 32,
        "swa_qk_nope_head_dim": 20,
        "swa_qk_rope_head_dim": 8,
        "swa_v_head_dim": 12,
        "moe_shared_expert_intermediate_size": 24,
        "apply_mla_qkv_lora_rescale": True,
        "tie_word_embeddings": False,
    }
    left = ("num_experts", "rope_scaling", "n_group", "topk_group")
    return "Dots3NoteForConditionalGeneration", arrays, {k: config[k] for k in config.keys() - left}


def deepseek_ocr(file):
    """With the parts that see, and its sizes in a part of the configuration."""
    config = facts(file)
    config |= {"n_routed_experts": config.pop("num_experts"), "n_shared_experts": 2, "use_mla": False}
    config |= {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "v_head_dim": 0, "topk_method": "greedy"}
    seen = ("sam_model.pos_embed", "vision_model.pre_layrnorm.bias", "projector.layers.bias", "view_seperator")
    arrays = plain(file, LLAMA | SHARED) | {f"model.{name}": np.zeros(8) for name in seen}
    return "DeepseekOCRForCausalLM", arrays, {"language_config": config}


def hunyuan_vl(file):
    """With a part that sees."""
    table = LLAMA | {f"attn_{x[0]}_norm": f"self_attn.{x}_layernorm" for x in ("query", "key")}
    arrays = plain(file, table) | {"vit.perceive.image_sep": np.zeros(8)}
    rope = {"type": "xdrope", "alpha": 4.0, "factor": 1.0, "xdrope_section": [2, 2, 2, 2]}
    config = facts(file) | {"head_dim": 16, "rope_scaling": rope, "tie_word_embeddings": True}
    return "HunYuanVLForConditionalGeneration", arrays, config


def cogvlm(file):
    """With a part that sees. Each matrix of a block is there for tokens, and for rows of images."""
    own = {"attn_qkv.": "self_attn.{}_expert_query_key_value.", "attn_output.": "self_attn.{}_expert_dense."}
    table = LLAMA | {name: path.format("language") for name, path in own.items()}
    table |= {f"vis_{name}": path.format("vision") for name, path in own.items()}
    for x in ("gate", "up", "down"):
        table |= {f"ffn_{x}.": f"mlp.language_mlp.{x}_proj.", f"vis_{x}.": f"mlp.vision_mlp.{x}_proj."}
    seen = ("vision.boi", "vision.patch_embedding.proj.weight", "vision.transformer.layers.0.mlp.fc1.bias")
    arrays = plain(file, table) | {f"model.{name}": np.zeros(8) for name in seen}
    config = facts(file) | {"tie_word_embeddings": False, "vision_config": {"hidden_size": 8}}
    return "CogVLMForCausalLM", arrays, {k: config[k] for k in config.keys() - {"num_key_value_heads", "rope_theta"}}


ROWS = {
    "cogvlm": cogvlm,
    "minimax-m3": minimax_m3,
    "dots3note": dots3note,
    "deepseek2-ocr": deepseek_ocr,
    "hunyuan_vl": hunyuan_vl,
}
