"""Early decoders: layer norms, fused QKV, learned positions or ALiBi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from woolly.convert.config_ledger import GELU_TANH, RELU2, SILU, activation
from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_keys, rope_of
from woolly.convert.tensor_ops import SWAPPED, TRANSPOSED, TensorOp, picked, reshaped

Keys = dict[str, Any]
Changes = Callable[[Hyperparameters, str, int], tuple[TensorOp, ...]]

_MATRICES = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
_TABLES = {
    "word_embeddings": "token_embd",
    "word_embeddings_layernorm": "token_embd_norm",
    "embed_in": "token_embd",
    "embed_out": "output",
    "final_layer_norm": "output_norm",
    "wpe": "position_embd",
}
_NAMES = {
    **{f"{where}.query_key_value": "attn_qkv" for where in ("self_attention", "attention")},
    **{f"{where}.dense": "attn_output" for where in ("self_attention", "attention", "self_attn")},
    **{f"self_attn.{x}_proj": f"attn_qkv@{i}" for i, x in enumerate("qkv")},
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.fc_in": "ffn_up",
    "mlp.fc_out": "ffn_down",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "attn.q_ln": "attn_q_norm",
    "attn.k_ln": "attn_k_norm",
    "norm_1": "attn_norm",
    "norm_2": "ffn_norm",
    "ln_mlp": "attn_norm",
    "ln_attn": "attn_norm_2",
}
_DBRX = {
    "norm_attn_norm.norm_1": "attn_norm",
    "norm_attn_norm.norm_2": "attn_output_norm",
    "norm_attn_norm.attn.Wqkv": "attn_qkv",
    "norm_attn_norm.attn.out_proj": "attn_output",
    "ffn.experts.mlp.w1": "ffn_gate_exps.weight",
    "ffn.experts.mlp.v1": "ffn_up_exps.weight",
    "ffn.experts.mlp.w2": "ffn_down_exps.weight",
}


def _sizes(c: Hyperparameters, norm: str) -> Keys:
    """Return sizes and heads from early key names, with the defaults of their classes."""
    width, heads = c.positive("hidden_size", "n_embd", "n_embed", "d_model"), _heads(c)
    inner = c.integer("ffn_hidden_size", "n_inner", default=0) or c.integer("intermediate_size", default=0)
    return {
        "block_count": c.n_layers,
        "context_length": c.positive(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", default=2048
        ),
        "embedding_length": width,
        "feed_forward_length": inner or width * c.positive("expansion_ratio", default=4),
        "attention.layer_norm_epsilon": c.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5),
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.key_length": width // heads,
        "attention.value_length": width // heads,
    }


def _heads(c: Hyperparameters) -> int:
    return c.positive("num_attention_heads", "n_head", "n_heads")


def _split(c: Hyperparameters, kv: int) -> TensorOp:
    """Split interleaved QKV (for each KV head: its q heads, k, v) into q, k and v."""
    heads, width = _heads(c), c.positive("hidden_size", "n_embd", "n_embed", "d_model")
    share = heads // kv
    rows = np.arange(kv * (share + 2) * (width // heads)).reshape(kv, share + 2, -1)
    parts = rows[:, :share], rows[:, share], rows[:, share + 1]
    return picked(np.concatenate([part.reshape(-1) for part in parts]), rows.size)


def _with_rope(c: Hyperparameters, keys: Keys) -> Keys:
    rope = rope_keys(c, keys["attention.key_length"])
    if c.has("rotary_pct"):
        rope["rope.dimension_count"] = int(keys["attention.key_length"] * c.number("rotary_pct"))
    return rope


def _bloom(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("apply_residual_connection_post_layernorm")
    return {"feed_forward_length": 4 * keys["embedding_length"]}


def _falcon(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("alibi")
    c.reject("parallel_attn", unless=(None, True))
    c.reject("activation", unless=(None, "gelu"))
    return {"attention.head_count_kv": _falcon_kv(c)} | _with_rope(c, keys)


def _falcon_kv(c: Hyperparameters) -> int:
    if c.flag("new_decoder_architecture"):
        return c.positive("num_kv_heads", "n_head_kv", default=_heads(c))
    return 1 if c.flag("multi_query", default=True) else _heads(c)


def _gpt2(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("activation_function", unless=(None, "gelu_new", "gelu_pytorch_tanh"))
    c.reject("scale_attn_weights", unless=(None, True))
    c.reject("scale_attn_by_inverse_layer_idx")
    return {}


def _starcoder(c: Hyperparameters, keys: Keys) -> Keys:
    return _gpt2(c, keys) | {"attention.head_count_kv": 1 if c.flag("multi_query", default=True) else _heads(c)}


def _gptneox(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("hidden_act", unless=(None, "gelu"))
    return {"use_parallel_residual": c.flag("use_parallel_residual", default=True)} | _with_rope(c, keys)


def _gptj(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("activation_function", unless=(None, "gelu_new", "gelu_pytorch_tanh"))
    return {"rope.dimension_count": c.positive("rotary_dim", default=64), "rope.freq_base": 10000.0}


def _mpt(c: Hyperparameters, keys: Keys) -> Keys:
    attention = c.inner(c.mapping("attn_config"))
    attention.reject("softmax_scale")
    attention.reject("prefix_lm")
    fall = attention.number("alibi_bias_max", default=8.0) if attention.flag("alibi") else None
    return {
        "feed_forward_length": c.positive("expansion_ratio", default=4) * keys["embedding_length"],
        "attention.head_count_kv": attention.positive("kv_n_heads", default=keys["attention.head_count"]),
        "attention.clamp_kqv": attention.number("clip_qkv", default=0.0) or None,
        "attention.max_alibi_bias": fall,
    }


def _dbrx(c: Hyperparameters, keys: Keys) -> Keys:
    attention, network = (c.inner(c.mapping(name)) for name in ("attn_config", "ffn_config"))
    network.reject("moe_normalize_expert_weights", unless=(1, None))
    network.inner(network.mapping("ffn_act_fn")).reject("name", unless=(None, *SILU))
    rope = rope_of(c)  # of transformers 5; older files have the base in attn_config
    return {
        "feed_forward_length": network.positive("ffn_hidden_size"),
        "attention.head_count_kv": attention.positive("kv_n_heads"),
        "attention.clamp_kqv": attention.number("clip_qkv", default=0.0) or None,
        "expert_count": network.positive("moe_num_experts"),
        "expert_used_count": network.positive("moe_top_k"),
        "rope.dimension_count": keys["attention.key_length"],
        "rope.freq_base": rope.number("rope_theta", default=attention.number("rope_theta", default=10000.0)),
    }


def _dbrx_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split the fused rows of all experts, and transpose the down projection."""
    if not name.endswith("_exps.weight"):
        return ()
    network = c.inner(c.mapping("ffn_config"))
    apart = reshaped(network.positive("moe_num_experts"), network.positive("ffn_hidden_size"), -1)
    return (apart, SWAPPED) if "down" in name else (apart,)


def _phi2(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("qk_layernorm")
    c.reject("hidden_act", unless=(None, *GELU_TANH))
    kv = c.positive("num_key_value_heads", default=keys["attention.head_count"])
    return {"attention.head_count_kv": kv} | _with_rope(c, keys)


def _qkv(kv: Callable[[Hyperparameters], int]) -> Changes:
    """Split fused q, k and v by the number of KV heads."""

    def changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
        return (_split(c, kv(c)),) if name.startswith("attn_qkv.") else ()

    return changes


def _conv(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Transpose matrices that are stored as convolutions."""
    return (TRANSPOSED,) if name in _MATRICES else ()


def _starcoder_qkv(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if c.flag("multi_query", default=True):  # all q heads, then k, then v
        return ()
    return _qkv(_heads)(c, name, block)


def _olmo(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.clamp_kqv": c.number("clip_qkv", default=0.0) or None}


def _same(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return ()


def _family(
    name: str, classes: str, keys: Callable[[Hyperparameters, Keys], Keys], changes: Changes = _same
) -> CheckpointFamily:
    return CheckpointFamily(name, classes, keys, names=_NAMES, top=_TABLES, changes=changes, norm="layer", base=_sizes)


FAMILIES = (
    _family("bloom", "BloomForCausalLM BloomModel", _bloom, _qkv(_heads)),
    _family("falcon", "FalconForCausalLM RWForCausalLM", _falcon, _qkv(_falcon_kv)),
    _family("gpt2", "GPT2LMHeadModel", _gpt2, _conv),
    _family("gptj", "GPTJForCausalLM", _gptj),
    _family("gptneox", "GPTNeoXForCausalLM", _gptneox, _qkv(_heads)),
    _family("mpt", "MptForCausalLM MPTForCausalLM", _mpt),
    _family("phi2", "PhiForCausalLM", _phi2),
    _family("starcoder", "GPTBigCodeForCausalLM", _starcoder, _starcoder_qkv),
    CheckpointFamily("dbrx", "DbrxForCausalLM", _dbrx, names=_DBRX, changes=_dbrx_changes, norm="layer", base=_sizes),
    CheckpointFamily("jais2", "Jais2ForCausalLM", norm="layer", settings=activation(RELU2)),
    CheckpointFamily("olmo", "OlmoForCausalLM", _olmo, norm="layer", pairs=True, defaults={"layer_norm_epsilon": 1e-5}),
    CheckpointFamily("orion", "OrionForCausalLM", norm="layer"),
)
