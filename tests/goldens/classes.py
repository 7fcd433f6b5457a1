"""transformers model of a GGUF file: class, configuration, and tensor names."""

import re

import numpy as np

from tests.goldens import chosen, compressed, latents, mixtures, streams, windowed
from tests.goldens.positions import rope_parameters, windows

# Converters reorder q and k of these so that rotary pairs are side by side; their classes have NeoX pairs.
PERMUTED = (
    *("llama", "granite", "granitemoe", "granite_swa", "mistral3", "smollm3", "arcee", "internlm2", "minicpm", "deci"),
    *("xverse", "baichuan", "deepseek", "muse-glimmer", "olmo"),
)
# Norm weights of these files are 1 higher than those of the checkpoint.
PLUS_ONE = ("gemma", "gemma2", "gemma3", "minimax-m3", "muse-glimmer", "nemotron", "step35")
CLASSES = mixtures.CLASSES | {
    "afmoe": "Afmoe",
    "apertus": "Apertus",
    "arcee": "Arcee",
    "baichuan": "Llama",
    "bitnet": "BitNet",
    "chatglm": "Glm",
    "codeshell": "Starcoder2",
    "cohere2": "Cohere2",
    "command-r": "Cohere",
    "deci": "Llama",
    "deepseek4": "DeepseekV4",
    "dots1": "Dots1",
    "dots3note": "Dots3Note",
    "ernie4_5": "Ernie4_5",
    "ernie4_5-moe": "Ernie4_5_Moe",
    "exaone": "Llama",
    "exaone4": "Exaone4",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
    "gemma3n": "Gemma3n",
    "gemma4": "Gemma4",
    "glm4": "Glm4",
    "glm4moe": "Glm4Moe",
    "gpt-oss": "GptOss",
    "granite": "Granite",
    "granitemoe": "GraniteMoeShared",
    "hunyuan-dense": "HunYuanDenseV1",
    "hunyuan-moe": "HunYuanMoEV1",
    "hunyuan_vl": "HunYuanDenseV1",  # text alone
    "internlm2": "Llama",
    "jais2": "Jais2",
    "llama": "Llama",
    "llama4": "Llama4",
    "mimo2": "MiMoV2Flash",
    "minicpm": "Granite",
    "minicpm3": "MiniCPM3",
    "minimax-m2": "MiniMaxM2",
    "minimax-m3": "MiniMaxM3VL",
    "mistral3": "Ministral3",
    "nemotron": "Nemotron",
    "olmo": "Olmo",
    "olmo2": "Olmo2",
    "olmoe": "Olmoe",
    "orion": "StableLm",
    "pangu-embedded": "Llama",
    "phi3": "Phi3",
    "phimoe": "Phimoe",
    "qwen": "Qwen2",
    "qwen2": "Qwen2",
    "qwen2moe": "Qwen2Moe",
    "paddleocr": "Llama",  # text alone
    "qwen2vl": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3moe": "Qwen3Moe",
    "qwen3vl": "Qwen3",
    "qwen3vlmoe": "Qwen3Moe",
    "seed_oss": "SeedOss",
    "smollm3": "SmolLM3",
    "stablelm": "StableLm",
    "starcoder2": "Starcoder2",
    "step35": "Step3p7",
    "xverse": "Llama",
}


def class_name(file):
    if name := latents.CLASSES.get(file.fields["general.name"]):
        return name
    if file.architecture == "llama" and file.get("expert_count"):
        return "Mixtral"
    if file.architecture in ("granite_swa", "minicpm") and file.get("expert_count"):
        return "GraniteMoeSWA" if file.architecture == "granite_swa" else "GraniteMoe"
    return (
        "Olmo3"
        if file.architecture == "olmo2" and file.get("attention.sliding_window")
        else CLASSES.get(file.architecture)
    )


def one(value):
    """The largest of an array that differs from layer to layer."""
    return max(int(x) for x in np.atleast_1d(value))


def options(file):
    """The configuration."""
    arch = file.architecture
    heads = one(file.get("attention.head_count"))
    width, head_dim = int(file.get("embedding_length")), int(file.get("attention.key_length", 0))
    head_dim = head_dim or width // heads
    n_drafts = int(file.get("nextn_predict_layers", 0))
    ffn = one(file.get("feed_forward_length"))
    eps = float(file.get("attention.layer_norm_rms_epsilon", file.get("attention.layer_norm_epsilon")))
    rope = rope_parameters(file)
    out = {
        "vocab_size": len(file.tensors["token_embd.weight"]),
        "hidden_size": width,
        "intermediate_size": ffn,
        "num_hidden_layers": int(file.get("block_count")) - n_drafts,
        "num_attention_heads": heads,
        "num_key_value_heads": one(file.get("attention.head_count_kv")),
        "head_dim": head_dim,
        "max_position_embeddings": int(file.get("context_length")),
        "rms_norm_eps": eps,
        "layer_norm_eps": eps,
        "norm_eps": eps,
        "norm_epsilon": eps,
        "rope_parameters": rope,
        "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": any(f"blk.0.attn_{x}.bias" in file.tensors for x in ("q", "qkv")),
        "pad_token_id": 0,
        "attn_implementation": "eager",
    }
    if file.get("expert_count"):
        inner, shared = (
            int(file.get("expert_feed_forward_length", ffn)),
            file.get("expert_shared_feed_forward_length", 0),
        )
        count, used = int(file.get("expert_count")), int(file.get("expert_used_count"))
        out |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), count)
        out |= dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), used)
        out |= {"moe_intermediate_size": inner, "shared_expert_intermediate_size": int(shared)}
        out |= {"shared_intermediate_size": int(shared), "decoder_sparse_step": 1, "num_shared_expert": 1}
        out |= dict.fromkeys(("n_shared_experts", "moe_num_shared_experts"), int(shared) // inner)
        if arch in ("gpt-oss", "hunyuan-moe"):
            out["intermediate_size"] = inner
        dense = int(file.get("leading_dense_block_count", 0))
        out |= {"first_k_dense_replace": dense, "moe_layer_start_index": dense}
        out |= {"norm_topk_prob": arch not in ("qwen2moe", "olmoe")}
        out |= {
            "n_group": int(file.get("expert_group_count", 1)),
            "topk_group": int(file.get("expert_group_used_count", 1)),
        }
        out |= {"routed_scaling_factor": float(file.get("expert_weights_scale", 1.0))}
    if "embedding_scale" in {key.rpartition(".")[2] for key in file.fields}:
        out |= {
            "embedding_multiplier": float(file.get("embedding_scale")),
            "residual_multiplier": float(file.get("residual_scale")),
            "attention_multiplier": float(file.get("attention.scale", head_dim**-0.5)),
            "logits_scaling": float(file.get("logit_scale")),
        }
    if arch in ("command-r", "cohere2"):
        out |= {
            "logit_scale": float(file.get("logit_scale")),
            "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        }
    if arch in ("gemma2", "gemma3"):
        out |= {"query_pre_attn_scalar": head_dim, "hidden_activation": "gelu_pytorch_tanh"}
        out["final_logit_softcapping"] = file.get("final_logit_softcapping")
        out["attn_logit_softcapping"] = file.get("attn_logit_softcapping")
    if arch == "phimoe":
        out["lm_head_bias"] = "output.bias" in file.tensors
        rope |= dict.fromkeys(("short_mscale", "long_mscale"), rope["attention_factor"])
    if arch == "phi3":
        out["original_max_position_embeddings"] = int(file.get("rope.scaling.original_context_length", 4096))
    if arch == "gemma3" or class_name(file) == "Olmo3":
        local = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base_swa", 10000.0))}
        out["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
    if file.get("attention.sliding_window") and arch not in ("llama4", "phi3"):
        layers = ["sliding_attention" if window else "full_attention" for window in windows(file)][
            : out["num_hidden_layers"]
        ]
        out |= {"sliding_window": int(file.get("attention.sliding_window")), "layer_types": layers}
    elif arch in ("codeshell", "exaone4", "phi3", "starcoder2"):
        out |= {"sliding_window": None} | ({"layer_types": ["full_attention"] * 2} if arch == "exaone4" else {})
    if arch in ("codeshell", "starcoder2"):
        out |= {"use_bias": True, "hidden_act": "gelu_pytorch_tanh"}
    if arch == "qwen":
        out["intermediate_size"] = ffn // 2
    if arch == "olmo":
        out["clip_qkv"] = float(file.get("attention.clamp_kqv"))
    if arch == "jais2":
        out["mlp_bias"] = True
    if arch in ("orion", "stablelm"):
        out |= {"use_qkv_bias": out["attention_bias"], "use_parallel_residual": bool(file.get("use_parallel_residual"))}
        out |= {"qk_layernorm": "blk.0.attn_q_norm.weight" in file.tensors}
    if arch == "bitnet":
        out["hidden_act"] = "silu"
    if arch == "llama4":
        length = int(file.get("attention.temperature_length", 8192))
        out |= {"intermediate_size": out["moe_intermediate_size"], "intermediate_size_mlp": ffn}
        out |= {"attn_scale": float(file.get("attention.temperature_scale", 0.1)), "floor_scale": length}
        out |= {"attention_chunk_size": int(file.get("attention.sliding_window", 8192)), "layer_types": None}
    if arch == "glm4moe":
        out["use_qk_norm"] = True
    if arch == "gemma4":
        kv, extra = (
            [int(x) for x in file.get("attention.head_count_kv")],
            int(file.get("embedding_length_per_layer_input", 0)),
        )
        out |= {"head_dim": int(file.get("attention.key_length_swa")), "global_head_dim": head_dim}
        out |= {"num_key_value_heads": kv[0], "num_global_key_value_heads": kv[-1], "attention_k_eq_v": not extra}
        out |= {"hidden_size_per_layer_input": extra, "vocab_size_per_layer_input": out["vocab_size"]}
        out |= {"num_kv_shared_layers": int(file.get("attention.shared_kv_layers", 0))}
        out |= {"final_logit_softcapping": float(file.get("final_logit_softcapping"))}
        out |= {"enable_moe_block": "num_experts" in out, "top_k_experts": out.get("num_experts_per_tok")}
        full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": rope["rope_theta"]}
        local = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base_swa"))}
        out["rope_parameters"] = {"full_attention": full, "sliding_attention": local}
    if arch == "gemma3n":
        out |= streams.options(file)
    out |= windowed.options(file)
    out |= mixtures.options(file, windows(file) if file.get("attention.sliding_window") else ())
    out |= latents.options(file) if file.get("attention.kv_lora_rank") else {}
    out |= chosen.options(file) | compressed.options(file)
    if arch == "minicpm3":
        out["rope_parameters"] = rope | {"partial_rotary_factor": 1.0}
    return out


NAMES = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "input_layernorm": "attn_norm",
    "attention_layernorm": "attn_norm",
    "feedforward_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "o_proj": "attn_output",
    "query_layernorm": "attn_q_norm",
    "key_layernorm": "attn_k_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "qkv_proj": "attn_qkv",
    "attn_sub_norm": "attn_sub_norm",
    "ffn_sub_norm": "ffn_sub_norm",
    "gate_up_proj": "ffn_up",
    "c_fc": "ffn_up",
    "c_proj": "ffn_down",
    "router": "ffn_gate_inp",
    "wg": "ffn_gate_inp",
    "gate": "ffn_gate_inp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
}


PER_LAYER = {
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
# Gemma 4's tensors that are no weights of a linear or norm.
SINGLE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}


def source(file, name, parameter):
    """The array of a parameter of the model in transformers, and the names of the tensors that it came from."""
    arch, get = file.architecture, file.tensors.get
    top = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
    top["lm_head.bias"] = "output.bias"
    top |= {f"model.{a}.weight": f"{b}.weight" for a, b in PER_LAYER.items()}
    top |= {f"model.norm.{kind}": f"output_norm.{kind}" for kind in ("weight", "bias")}
    if found := streams.source(file, name) or compressed.source(file, name) or latents.streams(file, name):
        return found
    if name in top:
        return plus_one(arch, top[name], file.tensors.get(top[name])), [top[name]]
    layer, inside = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
    block = f"blk.{layer}."
    if found := windowed.source(file, block, inside) or mixtures.source(file, block, inside):
        return found
    if found := chosen.source(file, block, inside):
        return found
    if inside in SINGLE:
        return get(block + SINGLE[inside]), [block + SINGLE[inside]]
    *path, kind = inside.split(".")
    if "experts." in name and "shared" not in name:
        return experts(file, block, kind)
    if "correction_bias" in name:
        found = block + "exp_probs_b.bias"
        return get(found).reshape(parameter.shape), [found]
    if kind == "sinks":
        return get(block + "attn_sinks.weight"), [block + "attn_sinks.weight"]
    last = path[-1]
    if file.get("attention.kv_lora_rank") and (found := latents.source(file, block, last, kind)):
        return found
    if "shared" in inside and last != "shared_expert_gate":
        x = {"input_linear": ("gate", "up"), "output_linear": ("down",)}.get(last) or (last.removesuffix("_proj"),)
        names = [f"{block}ffn_{one}_shexp.weight" for one in x]
        return np.concatenate([get(one) for one in names]), names
    if "norms" in path:  # StableLM: one of each head
        found = f"{block}attn_{path[1][0]}_norm.weight"
        return get(found)[int(last)], [found]
    if last == "post_attention_layernorm":
        sandwich = block + "post_attention_norm.weight" in file.tensors and arch != "glm4"
        found = "post_attention_norm" if sandwich else "ffn_norm"
    elif last in ("q_proj", "k_proj", "v_proj"):
        found = f"attn_{last[0]}"
        if block + "attn_qkv.weight" in file.tensors:
            n = parameter.shape[0]
            whole = get(f"{block}attn_qkv.{kind}")
            kv = int(file.get("attention.head_count_kv")) * int(file.get("attention.key_length"))
            at = {"q": 0, "k": len(whole) - 2 * kv, "v": len(whole) - kv}[last[0]]
            return whole[at : at + n], [f"{block}attn_qkv.{kind}"]
    else:
        found = NAMES.get(last) or f"ffn_{last.removesuffix('_proj')}"
    found = f"{block}{found}.{kind}"
    array = get(found)
    names = [found]
    if array is None:
        return None, []
    if found.endswith(("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")):
        array = neox_rows(arch, array, array.shape[0] // int(file.get("attention.key_length")))
    if (scale := get(found.replace(".weight", ".scale"))) is not None and kind == "weight":
        array, names = array * scale, [found, found.replace(".weight", ".scale")]
    return plus_one(arch, found, array).reshape(parameter.shape), names


def experts(file, block, kind):
    """Parameters that hold all experts: gate and up in one, gpt-oss' transposed and interleaved."""
    end = "bias" if kind.endswith("bias") else "weight"
    if kind.startswith("down"):
        names = [f"{block}ffn_down_exps.{end}"]
        array = file.tensors[names[0]]
    else:
        names = [f"{block}ffn_gate_up_exps.{end}"]
        if names[0] in file.tensors:
            return file.tensors[names[0]], names
        names = [f"{block}ffn_{x}_exps.{end}" for x in ("gate", "up")]
        gate, up = (file.tensors[name] for name in names)
        array = np.concatenate([gate, up], axis=1)
        if file.architecture == "gpt-oss":
            array = np.stack([gate, up], axis=2).reshape(array.shape)
    if file.architecture in ("gpt-oss", "llama4") and end == "weight":
        array = array.swapaxes(1, 2)
    return array, names


def plus_one(arch, name, array):
    shifted = arch in PLUS_ONE and not (arch == "muse-glimmer" and name == "output_norm.weight")
    return array - 1 if shifted and "norm" in name and name.endswith("weight") else array


def neox_rows(arch, array, n):
    """Rotary pairs side by side, reordered to NeoX."""
    if arch not in PERMUTED:
        return array
    shape = (n, array.shape[0] // n // 2, 2, *array.shape[1:])
    return array.reshape(shape).swapaxes(1, 2).reshape(array.shape)
