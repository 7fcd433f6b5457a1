"""Dense decoders: differences from Llama in names, keys and row order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from woolly.convert.config_ledger import GELU_TANH, RELU2, activation
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import every_window_keys, expert_keys, own_window_keys, window_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of
from woolly.convert.tensor_ops import TensorOp, in_pairs, picked

Keys = dict[str, Any]
POST_ATTENTION = {"post_attention_layernorm": "post_attention_norm"}


def _llama(c: Hyperparameters, keys: Keys) -> Keys:
    window = c.integer("sliding_window", default=0)
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length", None)
    return experts | ({"attention.sliding_window": window} if window and not c.get("layer_types") else {})


def granite_keys(c: Hyperparameters, keys: Keys) -> Keys:
    """Return Granite's multipliers."""
    usual = keys["attention.key_length"] ** -0.5 if c.is_null("attention_multiplier") else 1.0
    return {
        "embedding_scale": c.number("embedding_multiplier", default=1.0),
        "residual_scale": c.number("residual_multiplier", default=1.0),
        "attention.scale": c.number("attention_multiplier", default=usual),
        "logit_scale": c.number("logits_scaling", default=1.0),
    }


def _minicpm(c: Hyperparameters, keys: Keys) -> Keys:
    width = keys["embedding_length"]
    return {
        "embedding_scale": c.number("scale_emb", default=1.0),
        "residual_scale": c.number("scale_depth", default=math.sqrt(c.n_layers)) / math.sqrt(c.n_layers),
        "logit_scale": width / c.number("dim_model_base", default=float(width)),
    }


def _mistral3(c: Hyperparameters, keys: Keys) -> Keys:
    rope = rope_of(c)
    out: Keys = {"attention.temperature_scale": rope.number("llama_4_scaling_beta", default=0.0) or None}
    out |= every_window_keys(c)
    return out | {"rope.scaling.yarn_log_multiplier": rope.number("mscale_all_dim", default=0.0) or None}


def _qwen(c: Hyperparameters, keys: Keys) -> Keys:
    return own_window_keys(c)


def _starcoder2(c: Hyperparameters, keys: Keys) -> Keys:
    return every_window_keys(c)


def _bitnet(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("hidden_act", unless=("silu",))  # the class's default is relu2
    return {}


def _smollm3(c: Hyperparameters, keys: Keys) -> Keys:
    usual = [int((i + 1) % 4 != 0) for i in range(c.n_layers)]
    c.reject("no_rope_layers", unless=(None, usual))
    return {}


def _cohere(c: Hyperparameters, keys: Keys) -> Keys:
    return {"logit_scale": c.number("logit_scale", default=1.0)} | window_keys(c, 4)


def _phi3(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.sliding_window": c.integer("sliding_window", default=0) or None}


def _exaone4(c: Hyperparameters, keys: Keys) -> Keys:
    return window_keys(c) if c.has("sliding_window") else {}


def local_rope_keys(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the rope base of sliding-window layers if it differs from that of the other layers."""
    base = rope_of(c, "sliding_attention").number("rope_theta", default=keys["rope.freq_base"])
    return {} if base == keys["rope.freq_base"] else {"rope.freq_base_swa": base}


def _olmo2(c: Hyperparameters, keys: Keys) -> Keys:
    return window_keys(c) | local_rope_keys(c, keys)


def _stablelm(c: Hyperparameters, keys: Keys) -> Keys:
    return {"use_parallel_residual": c.flag("use_parallel_residual")}


def _deci(c: Hyperparameters, keys: Keys) -> Keys:
    """Return heads and widths per layer. A layer may have no attention or no MLP."""
    heads, kv, ffns = [], [], []
    for one in c.items("block_configs", dict, c.n_layers):
        block = c.inner(one)
        attention, network = c.inner(block.mapping("attention")), c.inner(block.mapping("ffn"))
        has = not attention.flag("no_op")
        linear = attention.flag("replace_with_linear")
        heads.append(keys["attention.head_count"] if has else 0)
        group = attention.integer("n_heads_in_group", default=1)
        kv.append(keys["attention.head_count"] // max(1, group) if has and not linear else 0)
        network.reject("replace_with_linear")
        ffns.append(0 if network.flag("no_op") else _deci_width(network, keys["embedding_length"]))
    lists: Keys = {"attention.head_count": heads, "attention.head_count_kv": kv, "feed_forward_length": ffns}
    return lists


def _deci_width(network: Hyperparameters, width: int) -> int:
    """Return 2/3 of 4 times the width times the multiplier, rounded up to a multiple of 256."""
    if network.has("intermediate_size"):
        return network.positive("intermediate_size")
    inner = int(2 * network.number("ffn_mult") * width / 3)
    return inner + -inner % 256


def _hunyuan_vl(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the rope base used in training, and its scaling."""
    rope = rope_of(c)
    return {"rope.freq_base": rope.number("rope_theta"), "rope.scaling.alpha": rope.number("alpha")}


def _internlm2(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split the fused QKV, which has for each KV head its q heads, then k, then v."""
    if name not in ("attn_q.weight", "attn_k.weight", "attn_v.weight"):
        return ()
    heads = c.positive("num_attention_heads")
    kv = c.positive("num_key_value_heads", default=heads)
    head, share = c.positive("hidden_size") // heads, heads // kv
    rows = np.arange(kv * (share + 2) * head).reshape(kv, share + 2, head)
    part = {"q": rows[:, :share], "k": rows[:, share], "v": rows[:, share + 1]}[name[5]]
    ops = (picked(part.reshape(-1), rows.size),)
    return ops if name[5] == "v" else (*ops, in_pairs(heads if name[5] == "q" else kv))


FAMILIES = (
    CheckpointFamily(
        "llama",
        "LlamaForCausalLM LLaMAForCausalLM MistralForCausalLM MixtralForCausalLM InternLM3ForCausalLM",
        _llama,
        pairs=True,
    ),
    CheckpointFamily("arcee", "ArceeForCausalLM", pairs=True, settings=activation(RELU2)),
    CheckpointFamily("apertus", "ApertusForCausalLM", settings=activation(("xielu",))),
    CheckpointFamily("bitnet", "BitNetForCausalLM BitnetForCausalLM", _bitnet),
    CheckpointFamily(
        "chatglm",
        "GlmForCausalLM",
        names={f"self_attn.{x}_proj": f"attn_qkv@{i}" for i, x in enumerate("qkv")},
    ),
    CheckpointFamily("cohere2", "Cohere2ForCausalLM", _cohere, norm="layer"),
    CheckpointFamily("command-r", "CohereForCausalLM", _cohere, norm="layer"),
    CheckpointFamily("deci", "DeciLMForCausalLM", _deci, names={"self_attn.linear_attn": "attn_output"}, pairs=True),
    CheckpointFamily("ernie4_5", "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM"),
    CheckpointFamily(
        "exaone",
        "ExaoneForCausalLM",
        names={f"attn.attention.{x}": f"attn_{x[0]}" for x in ("q_proj", "k_proj", "v_proj")}
        | {"attn.attention.out_proj": "attn_output"},
    ),
    CheckpointFamily("exaone4", "Exaone4ForCausalLM", _exaone4, names=POST_ATTENTION),
    CheckpointFamily("glm4", "Glm4ForCausalLM"),
    CheckpointFamily("granite", "GraniteForCausalLM", granite_keys, pairs=True),
    CheckpointFamily("hunyuan-dense", "HunYuanDenseV1ForCausalLM"),
    CheckpointFamily("hunyuan_vl", "HunYuanVLForConditionalGeneration", _hunyuan_vl),
    CheckpointFamily(
        "internlm2",
        "InternLM2ForCausalLM",
        names={"attention.wqkv": "attn_q*attn_k*attn_v"},
        changes=_internlm2,
    ),
    CheckpointFamily("minicpm", "MiniCPMForCausalLM", _minicpm, pairs=True),
    CheckpointFamily("mistral3", "Ministral3ForCausalLM Mistral3ForConditionalGeneration", _mistral3, pairs=True),
    CheckpointFamily("nemotron", "NemotronForCausalLM", norm="layer", plus_one=True, settings=activation(RELU2)),
    CheckpointFamily("olmo2", "Olmo2ForCausalLM Olmo3ForCausalLM", _olmo2, names=POST_ATTENTION),
    CheckpointFamily("paddleocr", "PaddleOCRVLForConditionalGeneration"),
    CheckpointFamily("pangu-embedded", "PanguEmbeddedForCausalLM"),
    CheckpointFamily("phi3", "Phi3ForCausalLM", _phi3),
    CheckpointFamily("qwen2", "Qwen2ForCausalLM Qwen2Model", _qwen),
    CheckpointFamily("qwen2vl", "Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration", _qwen),
    CheckpointFamily("qwen3", "Qwen3ForCausalLM Qwen3Model", _qwen),
    CheckpointFamily("qwen3vl", "Qwen3VLForConditionalGeneration"),
    CheckpointFamily("seed_oss", "SeedOssForCausalLM", names=POST_ATTENTION),
    CheckpointFamily("smollm3", "SmolLM3ForCausalLM", _smollm3, pairs=True),
    CheckpointFamily("stablelm", "StableLmForCausalLM StableLMEpochForCausalLM", _stablelm, norm="layer"),
    CheckpointFamily("starcoder2", "Starcoder2ForCausalLM", _starcoder2, norm="layer", settings=activation(GELU_TANH)),
    CheckpointFamily("xverse", "XverseForCausalLM", pairs=True),
)
