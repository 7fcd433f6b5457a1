"""Tiny models as their makers publish them: checkpoints of classes that transformers lacks or saves otherwise.

Each row says what a name of the GGUF file is in the checkpoint, and what was done to its values on the way; names are
those of published folders. `woolly/convert/families` says the same in the other direction, and was written apart.
"""

import re

import numpy as np

EXPERT = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_(ch)?exps\.weight")
LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output.": "lm_head.",
    "blk.": "model.layers.",
    "attn_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "attn_output.": "self_attn.o_proj.",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q.": "self_attn.q_proj.",
    "attn_k.": "self_attn.k_proj.",
    "attn_v.": "self_attn.v_proj.",
    "ffn_gate_inp.": "mlp.gate.",
    "ffn_gate.": "mlp.gate_proj.",
    "ffn_up.": "mlp.up_proj.",
    "ffn_down.": "mlp.down_proj.",
}
GPT = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.ln_f",
    "output.": "lm_head.",
    "blk.": "transformer.h.",
    "attn_norm.": "ln_1.",
    "ffn_norm.": "ln_2.",
    "attn_output.": "attn.c_proj.",
    "attn_qkv.": "attn.c_attn.",
    "ffn_down.": "mlp.c_proj.",
}
SHARED = {f"ffn_{x}_shexp": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")}
PLAMO = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output.": "lm_head.",
    "blk.": "model.layers.layers.",
    "attn_norm.": "pre_mixer_norm.",
    "ffn_norm.": "pre_mlp_norm.",
    "post_attention_norm": "post_mixer_norm.weight",
    "post_ffw_norm": "post_mlp_norm.weight",
    "attn_qkv": "mixer.qkv_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


def renamed(name, table):
    """Replace all names of the table in one pass, the longest first."""
    known = "|".join(re.escape(old) for old in sorted(table, key=len, reverse=True))
    return re.sub(known, lambda found: table[found[0]], name)


def neox_rows(array, n):
    """Rotary pairs of n heads, reordered to NeoX."""
    return array.reshape(n, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def facts(file):
    """Settings that most configurations have."""
    get = lambda key, default=None: file.metadata.get(f"{file.metadata['general.architecture']}.{key}", default)  # noqa: E731
    heads, kv, ffn = (get(f"{x}") for x in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"))
    largest = lambda x: max(np.atleast_1d(x).tolist())  # noqa: E731
    out = {
        "hidden_size": int(get("embedding_length")),
        "intermediate_size": int(largest(ffn)),
        "num_hidden_layers": int(get("block_count")) - int(get("nextn_predict_layers", 0)),
        "num_attention_heads": int(largest(heads)),
        "num_key_value_heads": int(largest(kv)),
        "max_position_embeddings": int(get("context_length")),
        "rms_norm_eps": float(get("attention.layer_norm_rms_epsilon", 0.0)),
        "rope_theta": float(get("rope.freq_base", 10000.0)),
    }
    if get("expert_count"):
        out |= {
            "num_experts": int(get("expert_count")),
            "num_experts_per_tok": int(get("expert_used_count")),
            "moe_intermediate_size": int(get("expert_feed_forward_length", 0)) or None,
            "first_k_dense_replace": int(get("leading_dense_block_count", 0)),
            "routed_scaling_factor": float(get("expert_weights_scale", 1.0)),
            "norm_topk_prob": bool(get("expert_weights_norm", False)),
        }
    return out


def old_sizes(file):
    """Model sizes under the names of GPT-2."""
    old = facts(file)
    return {
        "n_embd": old["hidden_size"],
        "n_head": old["num_attention_heads"],
        "n_layer": old["num_hidden_layers"],
        "n_positions": old["max_position_embeddings"],
        "n_inner": old["intermediate_size"],
        "layer_norm_epsilon": float(file.metadata.get(f"{arch(file)}.attention.layer_norm_epsilon", 1e-5)),
    }


def arch(file):
    return file.metadata["general.architecture"]


def plain(file, table, experts="mlp.experts.{e}.{x}_proj", each=None):
    """All tensors under their names; experts one by one; `each` changes a value by its GGUF name."""
    out = {}
    for name, tensor in file.tensors.items():
        value = tensor.dequantize()
        value = each(name, value) if each else value
        if value is None:
            continue
        if (expert := EXPERT.fullmatch(name)) and experts:
            stem = experts.replace("experts", "chunk_experts") if expert[3] else experts
            for e, one in enumerate(value):
                path = stem.format(e=e, x=expert[2])
                out[renamed(f"blk.{expert[1]}.", table) + f"{path}.weight"] = one
        else:
            out[renamed(name, table)] = value
    return out


def joined(arrays, parts, whole):
    """Tensors whose names end with one of `parts` joined to one that ends with `whole`."""
    out = {}
    for name, value in arrays.items():
        for part in parts:
            stem, found, kind = name.partition(part)
            if found and kind in (".weight", ".bias"):
                out.setdefault(f"{stem}{whole}{kind}", []).append((parts.index(part), value))
                break
        else:
            out[name] = value
    order = lambda value: np.concatenate([x for _, x in sorted(value, key=lambda pair: pair[0])])  # noqa: E731
    return {name: order(value) if isinstance(value, list) else value for name, value in out.items()}


def unpaired(file):
    """A change that reorders q and k to NeoX."""
    head = int(file.metadata[f"{arch(file)}.attention.key_length"])

    def each(name, value):
        turned = name.endswith(("attn_q.weight", "attn_k.weight"))
        return neox_rows(value, len(value) // head) if turned else value

    return each


def arctic(file):
    table = LLAMA | {"ffn_norm_exps.": "post_attention_layernorm.", "ffn_norm.": "residual_layernorm."}
    table |= {"ffn_gate_inp.": "block_sparse_moe.gate.", "ffn_gate.": "residual_mlp.w1."}
    table |= {"ffn_up.": "residual_mlp.w3.", "ffn_down.": "residual_mlp.w2."}
    arrays = plain(file, table, "block_sparse_moe.experts.{e}.{x}", unpaired(file))
    named = {"gate": "w1", "up": "w3", "down": "w2"}
    arrays = {re.sub(r"(experts\.\d+)\.(\w+)\.", lambda m: f"{m[1]}.{named[m[2]]}.", k): v for k, v in arrays.items()}
    config = facts(file)
    return "ArcticForCausalLM", arrays, config | {"num_local_experts": config.pop("num_experts")}


def baichuan(file):
    arrays = plain(file, LLAMA, each=unpaired(file))
    arrays = joined(arrays, [f"self_attn.{x}_proj" for x in "qkv"], "self_attn.W_pack")
    return "BaichuanForCausalLM", arrays, facts(file)


def bailingmoe(file):
    table = LLAMA | SHARED | {"token_embd": "model.word_embeddings", "attn_output.": "attention.dense."}
    arrays = joined(
        plain(file, table, each=unpaired(file)), [f"self_attn.{x}_proj" for x in "qkv"], "attention.query_key_value"
    )
    return "BailingMoeForCausalLM", arrays, facts(file) | {"num_shared_experts": 2}


def bailingmoe2(file):
    table = LLAMA | SHARED | {"token_embd": "model.word_embeddings", "attn_output.": "attention.dense."}
    table |= {"attn_qkv": "attention.query_key_value", "exp_probs_b.bias": "mlp.gate.expert_bias"}
    table |= {f"attn_{x[0]}_norm": f"attention.{x}_layernorm" for x in ("query", "key")}
    more = {"num_shared_experts": 1, "n_group": 4, "topk_group": 2, "partial_rotary_factor": 0.5, "head_dim": 16}
    return "BailingMoeV2ForCausalLM", plain(file, table), facts(file) | more


def codeshell(file):
    table = GPT | {"ffn_up.": "mlp.c_fc."} | {f"attn_{x}.": f"attn.{x}." for x in "qkv"}
    arrays = joined(plain(file, table), [f"attn.{x}" for x in "qkv"], "attn.c_attn")
    return "CodeShellForCausalLM", arrays, old_sizes(file) | {"num_query_groups": 2}


def deepseek(file):
    arrays = plain(file, LLAMA | SHARED, each=unpaired(file))
    config = facts(file)
    return (
        "DeepseekForCausalLM",
        arrays,
        config | {"n_routed_experts": config.pop("num_experts"), "n_shared_experts": 2},
    )


def grok(file):
    second = "output.weight" in file.tensors
    if second:
        table = LLAMA | {
            "attn_norm.": "pre_attn_norm.",
            "attn_output_norm": "post_attn_norm",
            "ffn_norm.": "pre_moe_norm.",
        }
        table |= {"post_ffw_norm": "post_moe_norm", "ffn_gate_inp.": "block_sparse_moe.gate."}
        arrays = plain(file, table, "block_sparse_moe.experts.{e}.{x}_proj")
    else:
        table = {
            "token_embd": "transformer.in_out_embed",
            "attn_output_norm": "rms_norm_1",
            "ffn_norm": "rms_norm_2",
            "layer_output_norm": "rms_norm_3",
            "attn_norm": "rms_norm",
            "output_norm": "transformer.rms_norm",
            "blk.": "transformer.decoder_layer.",
            "ffn_gate_inp": "router",
            **{f"attn_{x[0]}.": f"multi_head_attention.{x}." for x in ("query", "key", "value")},
            "attn_output.": "multi_head_attention.linear.",
        }
        arrays = plain(file, table, "moe.{e}.{x}")
        named = {"gate": "linear", "up": "linear_v", "down": "linear_1"}
        arrays = {re.sub(r"(moe\.\d+)\.(\w+)\.", lambda m: f"{m[1]}.{named[m[2]]}.", k): v for k, v in arrays.items()}
    config = facts(file) | {
        "num_local_experts": 5,
        "attn_output_multiplier": float(file.metadata["grok.attention.output_scale"]),
        "attn_logit_softcapping": 1.5,
        "embedding_multiplier_scale": 3.0,
        "output_multiplier_scale": 0.5,
    }
    if second:
        config |= {"rope_type": "original", "scaling_factor": 4.0, "original_max_position_embeddings": 16}
        config |= {"beta_fast": 8, "beta_slow": 1, "extrapolation_factor": 1.0, "attn_factor": 1.0}
        cap = float(file.metadata["grok.router_logit_softcapping"])
        config |= {"router_logit_softcapping": cap, "final_logit_softcapping": 2.0, "attn_temperature_len": 512}
    return "Grok1ForCausalLM", arrays, config


def grovemoe(file):
    return "GroveMoeForCausalLM", plain(file, LLAMA), facts(file) | {"head_dim": 16, "norm_topk_prob": True}


def jais(file):
    """Conv1D has its matrices the other way round; two factors are in the tables."""

    def each(name, value):
        if name in ("token_embd.weight", "output.weight"):
            return value / np.float32(8 if name[0] == "t" else 0.5)
        return value.T if value.ndim == 2 else value

    arrays = plain(file, GPT | {"ffn_up.": "mlp.c_fc.", "ffn_gate.": "mlp.c_fc2."}, each=each)
    arrays["transformer.relative_pe.slopes"] = np.float32([[[0.25]], [[0.0625]]])
    more = {"activation_function": "swiglu", "position_embedding_type": "alibi", "mup_embeddings_scale": 8.0}
    more |= {"mup_output_alpha": 2.0, "mup_width_scale": 0.25, "mup_scale_qk_dot_by_d": True}
    return "JAISLMHeadModel", arrays, old_sizes(file) | more


def maincoder(file):
    return "MaincoderForCausalLM", plain(file, LLAMA), facts(file) | {"head_dim": 16}


def openelm(file):
    table = {
        "token_embd": "transformer.token_embeddings",
        "output_norm": "transformer.norm",
        "blk.": "transformer.layers.",
        "attn_qkv": "attn.qkv_proj",
        "attn_output": "attn.out_proj",
        "attn_q_norm": "attn.q_norm",
        "attn_k_norm": "attn.k_norm",
        "ffn_gate": "ffn.gate",
        "ffn_up": "ffn.up",
        "ffn_down": "ffn.proj_2",
    }
    get = lambda key: np.asarray(file.metadata[f"openelm.{key}"]).tolist()  # noqa: E731
    config = {
        "model_dim": 64,
        "num_transformer_layers": 3,
        "head_dim": 16,
        "max_context_length": 512,
        "ffn_dim_divisor": 16,
        "ffn_multipliers": [0.75, 1.0, 1.5],
        "rope_freq_constant": 10000,
        "num_query_heads": get("attention.head_count"),
        "num_kv_heads": get("attention.head_count_kv"),
        "rms_norm_eps": 1e-5,
        "normalize_qk_projections": True,
        "ffn_with_glu": True,
    }
    return "OpenELMForCausalLM", joined(plain(file, table), ["ffn.gate", "ffn.up"], "ffn.proj_1"), config


def plamo(file):
    """Heads that share one of k take turns."""

    def each(name, value):
        if name.endswith("attn_q.weight"):
            return value.reshape(2, 2, 16, 64).swapaxes(0, 1).reshape(64, 64)
        if name.endswith("attn_output.weight"):
            return value.reshape(64, 2, 2, 16).swapaxes(1, 2).reshape(64, 64)
        return value

    table = LLAMA | {"attn_norm.": "norm.", "blk.": "model.layers.layers."}
    return "PlamoForCausalLM", plain(file, table, each=each), facts(file) | {"n_shared_head": 2}


def plamo2(file):
    def each(name, value):
        lower = {"post_attention_norm": 0.2, "post_ffw_norm": 5**-1.5}.get(name.rpartition(".")[2])
        if lower is None and re.search(r"(attn_norm|ffn_norm|output_norm|attn_[qk]_norm)\.weight$", name):
            lower = 0.0 if re.search("attn_[qk]_norm", name) and arch(file) == "plamo2" else 1.0
        if name.endswith("ssm_a"):
            return np.log(-value)
        if name.endswith("ssm_conv1d.weight"):
            return value[:, None]
        return value if lower is None else value - np.float32(lower)

    table = PLAMO | {
        "attn_q_norm.weight": "mixer.q_weight",
        "attn_k_norm.weight": "mixer.k_weight",
        "ssm_in": "mixer.in_proj",
        "ssm_conv1d": "mixer.conv1d",
        "ssm_out": "mixer.out_proj",
        "ssm_x": "mixer.bcdt_proj",
        "ssm_dt.weight": "mixer.dt_proj.weight",
        "ssm_dt.bias": "mixer.dt_bias",
        **{f"ssm_{x.lower()}_norm": f"mixer.{x}_norm_weight" for x in ("dt", "B", "C")},
        "ssm_a": "mixer.A_log",
        "ssm_d": "mixer.D",
    }
    if arch(file) == "plamo3":
        table |= {"attn_q_norm.weight": "mixer.q_norm.weight", "attn_k_norm.weight": "mixer.k_norm.weight"}
        more = {"window_size": 8, "sliding_window_pattern": 8, "head_dim": 16, "rope_local_theta": 10000}
        return "Plamo3ForCausalLM", plain(file, table, each=each), facts(file) | more
    more = {"hidden_size_per_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_num_heads": 4, "mamba_step": 2}
    return "Plamo2ForCausalLM", plain(file, table, each=each), facts(file) | more


def plm(file):
    table = LLAMA | {"attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm"}
    table |= {"attn_kv_b": "self_attn.kv_b_proj"}
    more = {"kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": None}
    return "PLMForCausalLM", plain(file, table), facts(file) | more


def qwen(file):
    table = GPT | {"ffn_up.": "mlp.w1.", "ffn_gate.": "mlp.w2."}
    more = {"layer_norm_epsilon": facts(file)["rms_norm_eps"], "rotary_emb_base": 10000}
    return "QWenLMHeadModel", plain(file, table), facts(file) | more


def refact(file):
    table = GPT | {f"attn_{x}.": f"attn.{x}." for x in "qkv"} | {"ffn_gate.": "mlp.gate.", "ffn_up.": "mlp.up."}
    arrays = joined(plain(file, table), ["attn.k", "attn.v"], "attn.kv")
    return "GPTRefactForCausalLM", joined(arrays, ["mlp.gate", "mlp.up"], "mlp.gate_up_proj"), old_sizes(file)


def smallthinker(file):
    table = LLAMA | {"ffn_gate_inp.": "block_sparse_moe.primary_router."}
    more = {"moe_num_primary_experts": 6, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 24}
    layout = [int(i % 4 != 0) for i in range(5)]
    more |= {"sliding_window_layout": layout, "rope_layout": layout, "sliding_window_size": 8, "head_dim": 16}
    config = facts(file) | more | {"moe_primary_router_apply_softmax": False}
    return "SmallThinkerForCausalLM", plain(file, table, "block_sparse_moe.experts.{e}.{x}"), config


ROWS = {
    "arctic": arctic,
    "baichuan": baichuan,
    "baichuan-13b": baichuan,
    "bailingmoe": bailingmoe,
    "bailingmoe2": bailingmoe2,
    "codeshell": codeshell,
    "deepseek": deepseek,
    "grok": grok,
    "grok-2": grok,
    "grovemoe": grovemoe,
    "jais": jais,
    "maincoder": maincoder,
    "openelm": openelm,
    "plamo": plamo,
    "plamo2": plamo2,
    "plamo3": plamo2,
    "plm": plm,
    "qwen": qwen,
    "refact": refact,
    "smallthinker": smallthinker,
}
