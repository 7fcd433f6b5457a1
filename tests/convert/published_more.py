"""Further models as their makers publish them: with windows, an index, a state, and encoders."""

import re

import numpy as np

from tests.cases.tiny import LLAMA3
from tests.convert.published import GPT, LLAMA, SHARED, arch, facts, joined, old_sizes, plain, unpaired


def gptj(file):
    table = GPT | {f"attn_{x}.": f"attn.{x}_proj." for x in "qkv"} | {"attn_output.": "attn.out_proj."}
    table |= {"ffn_up.": "mlp.fc_in.", "ffn_down.": "mlp.fc_out."}
    return "GPTJForCausalLM", plain(file, table), old_sizes(file) | {"rotary_dim": 8, "tie_word_embeddings": False}


def indexed(file):
    """K and V of each head are one matrix of the latent; positions are chosen by an index."""
    table = (
        LLAMA
        | SHARED
        | {
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_a.": "self_attn.q_a_proj.",
            "attn_q_b.": "self_attn.q_b_proj.",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
            "indexer.attn_q_b": "self_attn.indexer.wq_b",
            "indexer.attn_k": "self_attn.indexer.wk",
            "indexer.k_norm": "self_attn.indexer.k_norm",
            "indexer.proj": "self_attn.indexer.weights_proj",
            "nextn.enorm": "enorm",
            "attn_k_b": "K",
            "attn_v_b": "V",
        }
    )
    arrays = plain(file, table)
    for name in [name for name in arrays if name.endswith(".K.weight")]:
        k, v = arrays.pop(name).swapaxes(1, 2), arrays.pop(name.replace(".K.", ".V."))
        whole = np.concatenate([k, v], axis=1)
        arrays[name.replace(".K.", ".self_attn.kv_b_proj.")] = whole.reshape(-1, whole.shape[-1])
    config = facts(file) | {
        "q_lora_rank": 20,
        "kv_lora_rank": 24,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "index_n_heads": 8,
        "index_head_dim": 16,
        "index_topk": 8,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "n_routed_experts": 8,
    }
    if arch(file) == "glm-dsa":
        return "GlmMoeDsaForCausalLM", arrays, config | {"indexer_types": ["full", "shared", "full"]}
    rope = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0}
    config |= {"n_group": 4, "topk_group": 2, "rope_scaling": rope}
    return "DeepseekV32ForCausalLM", arrays, config


def laguna(file):
    shared = {f"ffn_{x}_shexp": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")}
    table = LLAMA | shared | {"attn_gate.": "self_attn.g_proj."}
    table["exp_probs_b.bias"] = "mlp.experts.e_score_correction_bias"
    get = lambda key, default=None: file.metadata.get(f"laguna.{key}", default)  # noqa: E731
    config = facts(file) | {"head_dim": 16, "moe_routed_scaling_factor": 1.5}
    config["shared_expert_intermediate_size"] = int(get("expert_shared_feed_forward_length"))
    n = config["num_hidden_layers"]
    config["mlp_layer_types"] = ["dense"] + ["sparse"] * (n - 1)
    full = {"rope_type": "default", "rope_theta": float(get("rope.freq_base")), "partial_rotary_factor": 1.0}
    if get("attention.sliding_window"):
        full |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
        full["partial_rotary_factor"] = 0.5
        config |= {"sliding_window": 8, "num_attention_heads_per_layer": get("attention.head_count").tolist()}
    local = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    kinds = ["full_attention" if i % 4 == 0 or n == 3 else "sliding_attention" for i in range(n)]
    config |= {"layer_types": kinds, "rope_parameters": {"full_attention": full, "sliding_attention": local}}
    config["gating"] = "per-element" if n == 3 else True
    return "LagunaForCausalLM", plain(file, table), config


def muse(file):
    """Norms of layers are stored 1 lower; q and k have a number in place of weights."""
    back = unpaired(file)

    def each(name, value):
        if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
            return None
        return value - 1 if "norm" in name and name != "output_norm.weight" else back(name, value)

    table = LLAMA | {"post_attention_norm": "post_attention_layernorm", "attn_gate.": "self_attn.gate_proj."}
    table |= {"ffn_norm.": "pre_feedforward_layernorm.", "post_ffw_norm": "post_feedforward_layernorm"}
    kinds = [
        "sliding_attention" if x else "full_attention"
        for x in file.metadata["muse-glimmer.attention.sliding_window_pattern"]
    ]
    text = facts(file) | {"sliding_window": 8, "layer_types": kinds, "final_logit_softcapping": 2.0, "head_dim": 16}
    text |= {"output_multiplier": float(file.metadata["muse-glimmer.logit_scale"]), "qk_scale_factor": 3.87}
    arrays = {
        name.replace("model.", "model.language_model.", 1): v for name, v in plain(file, table, each=each).items()
    }
    return "MuseGlimmerForConditionalGeneration", arrays, {"text_config": text}


def step(file):
    """Norms are stored 1 lower; all experts of a layer are one tensor."""
    get = lambda key: np.asarray(file.metadata[f"step35.{key}"]).tolist()  # noqa: E731
    each = lambda name, x: None if name == "rope_freqs.weight" else x - 1 if "norm" in name else x  # noqa: E731
    table = LLAMA | {f"ffn_{x}_shexp": f"share_expert.{x}_proj" for x in ("gate", "up", "down")}
    table |= {f"ffn_{x}_exps": f"moe.{x}_proj" for x in ("gate", "up", "down")}
    table |= {"ffn_gate_inp.": "moe.gate.", "exp_probs_b.bias": "moe.router_bias", "attn_gate.": "self_attn.g_proj."}
    kinds = ["sliding_attention" if x else "full_attention" for x in get("attention.sliding_window_pattern")]
    config = facts(file) | {
        "num_attention_heads": 4,
        "num_attention_groups": 2,
        "head_dim": 32,
        "layer_types": kinds,
        "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
        "rope_theta": [10000.0, 500.0, 500.0, 10000.0],
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
        "sliding_window": 8,
        "moe_num_experts": 6,
        "moe_top_k": 2,
        "share_expert_dim": 24,
        "moe_layers_enum": "1,2,3",
        "moe_router_scaling_factor": 2.5,
        "norm_expert_weight": True,
        "swiglu_limits": get("swiglu_clamp_exp"),
        "swiglu_limits_shared": get("swiglu_clamp_shexp"),
    }
    return "Step3p5ForCausalLM", plain(file, table, None, each), config


def lerps(arrays, stem, letters):
    """The fused shares of each layer, apart."""
    out = {}
    for name, value in arrays.items():
        if "time_mix_lerp_fused" not in name:
            out[name] = value
            continue
        for letter, one in zip(letters, value, strict=False):
            out[name.replace("time_mix_lerp_fused.weight", stem + letter)] = one
    return out


def rwkv6(file):
    def each(name, value):
        if name.endswith(("time_mix_w1.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight")):
            return value.T
        if name.endswith("time_mix_w2.weight"):
            return value.swapaxes(1, 2)
        if name.endswith("time_mix_decay.weight"):
            return value.reshape(1, 1, -1)
        if name.endswith(("time_mix_output.weight", "channel_mix_value.weight")):
            return value * np.float32(2 ** (int(name.split(".")[1]) // 2))
        return value

    table = {
        "token_embd_norm": "rwkv.blocks.0.pre_ln",
        "token_embd": "rwkv.embeddings",
        "output_norm": "rwkv.ln_out",
        "output.weight": "head.weight",
        "blk.": "rwkv.blocks.",
        "attn_norm_2": "ln2",
        "attn_norm": "ln1",
        "time_mix_ln": "attention.ln_x",
        "time_mix_lerp_x.weight": "attention.time_maa_x",
        "time_mix_w1.weight": "attention.time_maa_w1",
        "time_mix_w2.weight": "attention.time_maa_w2",
        "time_mix_decay.weight": "attention.time_decay",
        **{f"time_mix_decay_w{i}.weight": f"attention.time_decay_w{i}" for i in (1, 2)},
        "time_mix_first.weight": "attention.time_faaaa",
        **{f"time_mix_{x}.": f"attention.{x}." for x in ("receptance", "key", "value", "gate")},
        "time_mix_output.weight": "attention.output.weight",
        **{f"channel_mix_{x}": f"feed_forward.{x}" for x in ("receptance", "key", "value")},
        **{f"channel_mix_lerp_{x}.weight": f"feed_forward.time_maa_{x}" for x in "kr"},
    }
    config = {"hidden_size": 128, "head_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "rescale_every": 2}
    config["layer_norm_epsilon"] = float(file.metadata["rwkv6.attention.layer_norm_epsilon"])
    return "Rwkv6ForCausalLM", lerps(plain(file, table, each=each), "attention.time_maa_", "wkvrg"), config


def rwkv6qwen2(file):
    """The matrices of shares for r, k, v, w and g, where the file has w, k, v, r and g."""

    def each(name, value):
        if name.endswith(("time_mix_w1.weight", "time_mix_w2.weight")):
            return value.reshape(5, -1, value.shape[-1])[[3, 1, 2, 0, 4]].reshape(value.shape).swapaxes(-1, -2)
        if name.endswith(("time_mix_decay_w1.weight", "time_mix_decay_w2.weight")):
            return value.T
        return value.reshape(1, 1, -1) if name.endswith("time_mix_decay.weight") else value

    table = LLAMA | {
        "time_mix_lerp_x.weight": "self_attn.time_maa_x",
        **{f"time_mix_w{i}.weight": f"self_attn.time_maa_w{i}" for i in (1, 2)},
        "time_mix_decay.weight": "self_attn.time_decay",
        **{f"time_mix_decay_w{i}.weight": f"self_attn.time_decay_w{i}" for i in (1, 2)},
        "time_mix_receptance.": "self_attn.q_proj.",
        **{f"time_mix_{x}.": f"self_attn.{x[0]}_proj." for x in ("key", "value", "output")},
        "time_mix_gate.": "self_attn.gate.",
    }
    config = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    config |= {"num_hidden_layers": 2, "vocab_size": 320}
    config["rms_norm_eps"] = float(file.metadata["rwkv6qwen2.attention.layer_norm_rms_epsilon"])
    return "RWKV6Qwen2ForCausalLM", lerps(plain(file, table, each=each), "self_attn.time_maa_", "wkvrg"), config


def rwkv7(file):
    """Return RWKV-7 as fla saves it."""
    each = lambda name, x: x.reshape(2, 64) if name.endswith("r_k.weight") else x  # noqa: E731
    table = {
        "token_embd_norm": "model.layers.0.pre_norm",
        "token_embd": "model.embeddings",
        "output_norm": "model.norm",
        "output.weight": "lm_head.weight",
        "blk.": "model.layers.",
        "attn_norm_2": "ffn_norm",
        "time_mix_ln": "attn.g_norm",
        "channel_mix_lerp_k.weight": "ffn.x_k",
        "channel_mix_": "ffn.",
        **{f"time_mix_{x}": f"attn.{x[0]}_proj" for x in ("receptance", "key", "value")},
        "time_mix_output.weight": "attn.o_proj.weight",
        **{f"time_mix_{x}.weight": f"attn.{x}" for x in ("k_k", "k_a", "r_k")},
    }
    for x in "wavg":
        table |= {f"time_mix_{x}1.": f"attn.{x}_lora.lora.0.", f"time_mix_{x}2.": f"attn.{x}_lora.lora.2."}
        table[f"time_mix_{x}0.weight"] = f"attn.{x}_lora.lora.2.bias"
    config = {"hidden_size": 128, "head_dim": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    config["norm_eps"] = float(file.metadata["rwkv7.attention.layer_norm_epsilon"])
    return "RWKV7ForCausalLM", lerps(plain(file, table, each=each), "attn.x_", "rwkvag"), config


def arwkv7(file):
    def each(name, value):
        if re.search(r"time_mix_[wavg][12]\.weight", name):
            return value.T
        if name.endswith("r_k.weight"):
            return value.reshape(2, 64)
        return value.reshape(1, 1, -1) if re.search(r"time_mix_([wav]0|k_k|k_a)\.weight", name) else value

    stem = "self_attn.time_mixer."
    table = LLAMA | {
        **{f"time_mix_{x}.": f"{stem}{x}." for x in ("receptance", "key", "value")},
        "time_mix_output.weight": f"{stem}output.weight",
        "time_mix_ln": f"{stem}ln_x",
        **{f"time_mix_{x}.weight": stem + x for x in ("k_k", "k_a", "r_k")},
        **{f"time_mix_{x}{i}.weight": f"{stem}{x}{i}" for x in "wavg" for i in range(3)},
    }
    config = {"hidden_size": 128, "head_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "wkv_version": 7}
    config["rms_norm_eps"] = float(file.metadata["arwkv7.attention.layer_norm_rms_epsilon"])
    return "RwkvHybridForCausalLM", lerps(plain(file, table, each=each), f"{stem}x_", "rwkvag"), config


BERT = {
    "token_embd.": "embeddings.word_embeddings.",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.": "encoder.layer.",
    "attn_output_norm": "attention.output.LayerNorm",
    "attn_output.": "attention.output.dense.",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
}


def encoder(file):
    """Settings of BERT."""
    old = facts(file)
    old["layer_norm_eps"] = float(file.metadata.get(f"{arch(file)}.attention.layer_norm_epsilon", 0.0))
    return old


def jina2(file):
    table = BERT | {"ffn_gate.": "mlp.gate.", "ffn_up.": "mlp.up.", "ffn_down": "mlp.wo"}
    table["layer_output_norm"] = "mlp.layernorm"
    arrays = joined(plain(file, table), ["mlp.gate", "mlp.up"], "mlp.gated_layers")
    arrays["pooler.dense.weight"] = np.zeros((96, 96), np.float32)
    more = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    return "JinaBertModel", arrays, encoder(file) | more


def jina3(file):
    table = BERT | {"blk.": "layers.", "attn_output_norm": "post_attention_layernorm", "ffn_up": "mlp.fc1"}
    table |= {"layer_output_norm": "post_mlp_layernorm", "attn_output.": "self_attn.o_proj.", "ffn_down": "mlp.fc2"}
    table |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    config = encoder(file)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    return "JinaEmbeddingsV3Model", plain(file, table), config


def nomic_moe(file):
    """The rows of all experts are one matrix, and those of the way down are turned."""

    def each(name, value):
        value = value.swapaxes(1, 2) if "down_exps" in name else value
        return value.reshape(-1, value.shape[-1]) if "exps" in name else value

    table = BERT | {"blk.": "encoder.layers.", "token_embd_norm": "emb_ln", "attn_output_norm": "norm1"}
    table |= {"layer_output_norm": "norm2", "attn_qkv": "attn.Wqkv", "attn_output.": "attn.out_proj."}
    table |= {"ffn_up.": "mlp.fc1.", "ffn_down.": "mlp.fc2.", "ffn_gate_inp": "mlp.router.layer"}
    table |= {"ffn_up_exps.weight": "mlp.experts.mlp.w1", "ffn_down_exps.weight": "mlp.experts.mlp.w2"}
    config = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 96, "n_positions": 64, "moe_every_n_layers": 2}
    config |= {"num_experts": 4, "moe_top_k": 2, "layer_norm_epsilon": encoder(file)["layer_norm_eps"]}
    return "NomicBertModel", plain(file, table, None, each), config | {"rotary_emb_base": 10000}


def neo(file):
    """Q, k and v of each head side by side."""
    table = {
        "token_embd": "model.encoder",
        "enc.output_norm": "model.layer_norm",
        "blk.": "model.transformer_encoder.",
        "attn_norm": "attention_norm",
        "attn_qkv": "qkv",
        "attn_output": "wo",
        "ffn_up": "ffn.w12",
        "ffn_down": "ffn.w3",
    }
    mixed = lambda x: x.reshape(3, 4, 16, 64).swapaxes(0, 1).reshape(192, 64)  # noqa: E731
    arrays = plain(file, table, each=lambda name, x: mixed(x) if "attn_qkv" in name else x)
    config = encoder(file) | {"intermediate_size": 144, "max_length": 64}
    del config["max_position_embeddings"]
    return "NeoBERT", arrays, config | {"norm_eps": config["rms_norm_eps"]}


def t5(file):
    stem = "layer.1.DenseReluDense."
    gated = "enc.blk.0.ffn_gate.weight" in file.tensors
    table = {
        "token_embd": "shared",
        "enc.output_norm": "encoder.final_layer_norm",
        "enc.blk.": "encoder.block.",
        **{f"attn_{x}.": f"layer.0.SelfAttention.{x}." for x in "qkvo"},
        "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias",
        "attn_norm": "layer.0.layer_norm",
        "ffn_norm": "layer.1.layer_norm",
        "ffn_down": f"{stem}wo",
        "ffn_gate": f"{stem}wi_0",
        "ffn_up": f"{stem}wi_1" if gated else f"{stem}wi",
    }
    config = {"d_model": 64, "d_ff": 96, "d_kv": 16, "num_heads": 4, "num_layers": 2, "n_positions": 256}
    config |= {"layer_norm_epsilon": facts(file)["rms_norm_eps"], "relative_attention_num_buckets": 32}
    config["feed_forward_proj"] = "gated-gelu" if gated else "relu"
    return "T5EncoderModel", plain(file, table), config


def t5_reads(file):
    gated = "dec.blk.0.ffn_gate.weight" in file.tensors
    inside = {f"attn_{x}": f"0.SelfAttention.{x}" for x in "qkvo"} | {
        **{f"cross_attn_{x}": f"1.EncDecAttention.{x}" for x in "qkvo"},
        "attn_rel_b": "0.SelfAttention.relative_attention_bias",
        "cross_attn_rel_b": "1.EncDecAttention.relative_attention_bias",
        "attn_norm": "0.layer_norm",
        "cross_attn_norm": "1.layer_norm",
        "ffn_norm": "2.layer_norm",
        "ffn_down": "2.DenseReluDense.wo",
        "ffn_gate": "2.DenseReluDense.wi_0",
        "ffn_up": "2.DenseReluDense.wi_1" if gated else "2.DenseReluDense.wi",
    }
    arrays = {}
    for name, tensor in file.tensors.items():
        half, _, *rest = name.split(".")
        stem = {"enc": "encoder", "dec": "decoder"}.get(half, {"output": "lm_head"}.get(half, "shared"))
        if rest and half in ("enc", "dec"):
            stem += ".final_layer_norm" if len(rest) == 1 else f".block.{rest[0]}.layer.{inside[rest[1]]}"
        arrays[f"{stem}.weight".replace("r.2.", "r.1." if half == "enc" else "r.2.")] = tensor.dequantize()
    arrays["decoder.embed_tokens.weight"] = arrays["shared.weight"]
    config = t5(file)[2] | {"num_decoder_layers": 2 - gated, "decoder_start_token_id": 3}
    return "T5ForConditionalGeneration", arrays, config | ({"tie_word_embeddings": False} if gated else {})


ROWS = {
    "gptj": gptj,
    "deepseek-v32": indexed,
    "glm-dsa": indexed,
    "laguna": laguna,
    "laguna-m": laguna,
    "muse-glimmer": muse,
    "step35": step,
    "rwkv6": rwkv6,
    "rwkv7": rwkv7,
    "arwkv7": arwkv7,
    "rwkv6qwen2": rwkv6qwen2,
    "arwkv7-bare": arwkv7,
    "jina-bert-v2": jina2,
    "jina-bert-v3": jina3,
    "nomic-bert-moe": nomic_moe,
    "neo-bert": neo,
    "t5": t5,
    "t5-gated": t5,
    "t5-reads": t5_reads,
    "t5-reads-gated": t5_reads,
}
