"""Decoders with remote code: the class is in the model's repository, not in transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import expert_keys, transformer_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_keys
from woolly.convert.tensor_ops import TRANSPOSED, TensorOp, in_pairs, normalized, picked, scaled
from woolly.errors import UnsupportedError

Keys = dict[str, Any]
_GATED = ("gate", "up", "down")
_BAICHUAN2 = 125696  # vocabulary size that identifies version 2, whose output matrix is normalized


def _heads(c: Hyperparameters) -> tuple[int, int, int]:
    """Return query heads, KV heads and head size."""
    heads = c.positive("num_attention_heads", "n_head")
    width = c.positive("hidden_size", "n_embd")
    kv = c.positive("num_key_value_heads", "num_query_groups", default=heads)
    return heads, kv, c.integer("head_dim", default=0) or width // heads


def _part(c: Hyperparameters, name: str) -> TensorOp:
    """Return the rows of q, k or v in a fused matrix."""
    heads, kv, head = _heads(c)
    edges = np.cumsum([0, heads * head, kv * head, kv * head])
    which = "qkv".index(name[5])
    return picked(np.arange(edges[which], edges[which + 1]), int(edges[3]))


def _apart(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return (_part(c, name),) if name.startswith(("attn_q.", "attn_k.", "attn_v.")) else ()


def _apart_in_pairs(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split a fused matrix, and reorder q and k to adjacent rotary pairs."""
    if not name.startswith(("attn_q.", "attn_k.", "attn_v.")):
        return ()
    heads, kv, _ = _heads(c)
    paired = () if name[5] == "v" else (in_pairs(heads if name[5] == "q" else kv),)
    return (_part(c, name), *paired)


def _baichuan(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if name == "output.weight" and c.integer("vocab_size", default=0) == _BAICHUAN2:
        return (normalized(1, 1e-12),)
    return _apart_in_pairs(c, name, block)


# Separate weights for text tokens and image rows.
_COGVLM = {
    **{f"self_attn.{x}_expert_query_key_value": f"{y}attn_qkv" for x, y in (("language", ""), ("vision", "vis_"))},
    **{f"self_attn.{x}_expert_dense": f"{y}attn_output" for x, y in (("language", ""), ("vision", "vis_"))},
    **{f"mlp.{x}_mlp.{z}_proj": f"{y}_{z}" for x, y in (("language", "ffn"), ("vision", "vis")) for z in _GATED},
}


def _cogvlm(c: Hyperparameters, keys: Keys) -> Keys:
    if c.integer("num_multi_query_heads", default=0):
        raise UnsupportedError(
            "CogVLM 2, whose vision encoder ends with a convolution, is not supported yet; use CogVLM 1"
        )
    return {}


def _bailing(c: Hyperparameters, keys: Keys) -> Keys:
    experts = expert_keys(c, normalize=c.flag("norm_topk_prob", default=True))
    count, inner = c.integer("num_shared_experts", default=0), experts["expert_feed_forward_length"]
    out: Keys = {"leading_dense_block_count": c.integer("first_k_dense_replace", default=0)}
    if count:
        shared = c.integer("moe_shared_expert_intermediate_size", default=inner * count)
        out |= {"expert_shared_count": count, "expert_shared_feed_forward_length": shared}
    return experts | out


def _bailing_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if name == "output.weight" and c.flag("norm_head"):
        return (normalized(0, 1e-7),)
    return _apart_in_pairs(c, name, block)


def _bailing2(c: Hyperparameters, keys: Keys) -> Keys:
    head = keys["attention.key_length"]
    rope = rope_keys(c.with_defaults({"partial_rotary_factor": 0.5}), head)
    return rope | _bailing(c, keys) | {"expert_gating_func": 2}


def _codeshell(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("position_embedding_type", unless=(None, "rope"))
    c.reject("activation_function", unless=(None, "gelu_pytorch_tanh", "gelu_new"))
    return {"attention.head_count_kv": _heads(c)[1]}


def _wide(c: Hyperparameters, norm: str) -> Keys:
    """Return the common keys. The default MLP width is four times the model's width."""
    return transformer_keys(c.with_defaults({"n_inner": 4 * c.positive("hidden_size", "n_embd")}), norm)


def _deepseek(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("norm_topk_prob")
    c.reject("moe_layer_freq", unless=(None, 1))
    count, experts = c.integer("n_shared_experts", default=0), expert_keys(c)
    shared = {"expert_shared_feed_forward_length": count * experts["expert_feed_forward_length"]}
    dense = {"leading_dense_block_count": c.integer("first_k_dense_replace", default=0)}
    return experts | dense | {"expert_shared_count": count} | (shared if count else {})


def _deepseek_ocr(c: Hyperparameters, keys: Keys) -> Keys:
    """Reject MLA, which the class supports but the checkpoint does not use."""
    c.reject("use_mla")
    c.reject("topk_method", unless=(None, "greedy"))
    return _deepseek(c, keys)


def _arctic(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("moe_layer_frequency", unless=(None, 1))
    c.reject("use_residual", unless=(None, True))
    experts = expert_keys(c)
    experts.pop("expert_feed_forward_length")
    return experts


def _grok(c: Hyperparameters, keys: Keys) -> Keys:
    """Return separate widths for Grok 2's dense MLP and its experts."""
    inner = c.integer("moe_intermediate_size", default=0)
    out = expert_keys(c) | {"expert_feed_forward_length": inner or None}
    kind = c.text("rope_type")
    if kind in ("yarn", "original"):
        out |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": c.number("scaling_factor"),
            "rope.scaling.original_context_length": c.positive("original_max_position_embeddings"),
            "rope.scaling.yarn_beta_fast": c.number("beta_fast", default=8.0),
            "rope.scaling.yarn_beta_slow": c.number("beta_slow", default=1.0),
        }
        c.reject("extrapolation_factor", unless=(None, 1, 1.0))
        c.reject("attn_factor", unless=(None, 1, 1.0))
    return out | {
        "attention.output_scale": c.number("attn_output_multiplier", default=keys["attention.key_length"] ** -0.5),
        "attention.temperature_length": c.integer("attn_temperature_len", default=0) or None,
        "attn_logit_softcapping": c.number("attn_logit_softcapping", default=30.0),
        "router_logit_softcapping": c.number("router_logit_softcapping", default=30.0 if inner else 0.0) or None,
        "final_logit_softcapping": c.number("final_logit_softcapping", default=0.0) or None,
        "embedding_scale": c.number("embedding_multiplier_scale"),
        "logit_scale": c.number("output_multiplier_scale"),
    }


def _grove(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the keys of adjugate experts, shared by two experts. Their width and scale are in the class only."""
    c.reject("norm_topk_prob", unless=(None, True))
    own = {"experts_per_group": 2, "expert_group_scale": 0.05}
    return expert_keys(c) | own | {"expert_chunk_feed_forward_length": keys["attention.key_length"]}


def _jais(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("activation_function", unless=("swiglu",))
    c.reject("position_embedding_type", unless=("alibi",))
    c.reject("mup_scale_qk_dot_by_d", unless=(None, True))
    return {"attention.max_alibi_bias": 8.0}


def _jais_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Transpose matrices that are stored as convolutions, and fold scales of rows and logits into the tables."""
    if name == "token_embd.weight":
        return (scaled(np.float32(c.number("mup_embeddings_scale", "embeddings_scale"))),)
    if name == "output.weight":
        whole = c.number("width_scale", default=1.0)
        if c.get("mup_output_alpha") is not None:
            whole = c.number("mup_output_alpha") * c.number("mup_width_scale")
        return (scaled(np.float32(whole)),)
    return (TRANSPOSED,) if name.endswith(".weight") and not name.endswith("norm.weight") else ()


def _elm_widths(c: Hyperparameters, norm: str) -> Keys:
    n = c.positive("num_transformer_layers")
    divisor, width = c.positive("ffn_dim_divisor", default=256), c.positive("model_dim")
    ffns = []
    for factor in c.items("ffn_multipliers", (int, float), n):
        ffn = max(divisor, int(factor * width + divisor / 2) // divisor * divisor)
        ffns.append(ffn + divisor if ffn < 0.9 * factor * width else ffn)
    head = c.positive("head_dim")
    return {
        "block_count": n,
        "context_length": c.positive("max_context_length"),
        "embedding_length": width,
        "feed_forward_length": ffns,
        "attention.layer_norm_rms_epsilon": c.number("rms_norm_eps", default=1e-6),
        "attention.head_count": c.items("num_query_heads", int, n),
        "attention.head_count_kv": c.items("num_kv_heads", int, n),
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "rope.freq_base": c.number("rope_freq_constant", default=10000.0),
    }


def _elm(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("normalize_qk_projections", unless=(None, True))
    c.reject("ffn_with_glu", unless=(None, True))
    return {}


def _plm(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("q_lora_rank", unless=(None, 0))
    turned = c.positive("qk_rope_head_dim")
    return {
        "attention.kv_lora_rank": c.positive("kv_lora_rank"),
        "attention.key_length": c.positive("qk_nope_head_dim") + turned,
        "attention.value_length": c.positive("v_head_dim"),
        "rope.dimension_count": turned,
    }


def _refact(c: Hyperparameters, keys: Keys) -> Keys:
    """Return an MLP width of 2/3 of 4 times the width, rounded up to a multiple of 256."""
    inner = int(8 * keys["embedding_length"] / 3)
    return {
        "attention.head_count_kv": 1,
        "feed_forward_length": c.integer("n_inner", default=0) or inner + -inner % 256,
    }


def _smallthinker(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys without rope in global layers, which are the first of every four layers."""
    inner = c.positive("moe_ffn_hidden_size")
    layout = c.get("sliding_window_layout") or []
    usual = [int(i % 4 != 0) for i in range(c.n_layers)]
    c.reject("sliding_window_layout", unless=(None, usual, [0] * c.n_layers))
    c.reject("rope_layout", unless=(None, usual if any(layout) else [1] * c.n_layers))
    c.reject("moe_enable_secondary_experts")
    return {
        "expert_count": c.positive("moe_num_primary_experts"),
        "expert_used_count": c.positive("moe_num_active_primary_experts"),
        "expert_feed_forward_length": inner,
        "expert_gating_func": 1 if c.flag("moe_primary_router_apply_softmax") else 2,
        "attention.sliding_window": c.positive("sliding_window_size") if any(layout) else None,
    }


def _thinker_base(c: Hyperparameters, norm: str) -> Keys:
    return transformer_keys(c.with_defaults({"intermediate_size": c.positive("moe_ffn_hidden_size")}), norm)


_QKV = {"attn_q*attn_k*attn_v": ("self_attn.W_pack", "attention.query_key_value", "attn.c_attn")}
_TO_PARTS = {name: value for value, names in _QKV.items() for name in names}
_BAILING = {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"}
_GROK = {
    "rms_norm": "attn_norm",
    "rms_norm_1": "attn_output_norm",
    "rms_norm_2": "ffn_norm",
    "rms_norm_3": "layer_output_norm",
    "pre_attn_norm": "attn_norm",
    "post_attn_norm": "attn_output_norm",
    "pre_moe_norm": "ffn_norm",
    "post_moe_norm": "post_ffw_norm",
    "multi_head_attention.query": "attn_q",
    "multi_head_attention.key": "attn_k",
    "multi_head_attention.value": "attn_v",
    "multi_head_attention.linear": "attn_output",
}

FAMILIES = (
    CheckpointFamily(
        "arctic",
        "ArcticForCausalLM",
        _arctic,
        names={
            "residual_layernorm": "ffn_norm",
            "post_attention_layernorm": "ffn_norm_exps",
            **{f"residual_mlp.{x}": f"ffn_{y}" for x, y in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
        },
        pairs=True,
        settings={"norm_topk_prob": (False,)},
    ),
    CheckpointFamily("baichuan", "BaichuanForCausalLM BaiChuanForCausalLM", names=_TO_PARTS, changes=_baichuan),
    CheckpointFamily(
        "bailingmoe",
        "BailingMoeForCausalLM",
        _bailing,
        names=_BAILING | _TO_PARTS,
        top={"word_embeddings": "token_embd"},
        changes=_bailing_changes,
    ),
    CheckpointFamily(
        "bailingmoe2",
        "BailingMoeV2ForCausalLM",
        _bailing2,
        names=_BAILING | {"mlp.gate.expert_bias": "exp_probs_b.bias"},
        top={"word_embeddings": "token_embd"},
    ),
    CheckpointFamily(
        "codeshell",
        "CodeShellForCausalLM",
        _codeshell,
        names=_TO_PARTS | {"attn.c_proj": "attn_output"},
        changes=_apart,
        norm="layer",
        base=_wide,
    ),
    CheckpointFamily("cogvlm", "CogVLMForCausalLM", _cogvlm, names=_COGVLM),
    CheckpointFamily("deepseek", "DeepseekForCausalLM", _deepseek, pairs=True),
    CheckpointFamily(
        "deepseek2-ocr",
        "DeepseekOCRForCausalLM",
        _deepseek_ocr,
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "routed_scaling_factor": 1.0},
    ),
    CheckpointFamily(
        "grok",
        "GrokForCausalLM Grok1ForCausalLM",
        _grok,
        names=_GROK,
        top={"in_out_embed": "token_embd", "rms_norm": "output_norm"},
        settings={"norm_topk_prob": (False,)},
    ),
    CheckpointFamily("grovemoe", "GroveMoeForCausalLM", _grove),
    CheckpointFamily(
        "jais",
        "JAISLMHeadModel",
        _jais,
        names={"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc2": "ffn_gate"},
        changes=_jais_changes,
        norm="layer",
        ties=False,
    ),
    CheckpointFamily("maincoder", "MaincoderForCausalLM"),
    CheckpointFamily(
        "openelm",
        "OpenELMForCausalLM",
        _elm,
        names={
            "attn_norm": "attn_norm",
            "attn.out_proj": "attn_output",
            "ffn.proj_1": "ffn_gate|ffn_up",
            "ffn.proj_2": "ffn_down",
        },
        top={"token_embeddings": "token_embd"},
        base=_elm_widths,
    ),
    CheckpointFamily("plm", "PLMForCausalLM", _plm, names={"self_attn.kv_b_proj": "attn_kv_b"}),
    CheckpointFamily(
        "qwen",
        "QWenLMHeadModel",
        names={
            "attn.c_attn": "attn_qkv",
            "attn.c_proj": "attn_output",
            "mlp.w1": "ffn_up",
            "mlp.w2": "ffn_gate",
        },
    ),
    CheckpointFamily(
        "refact",
        "GPTRefactForCausalLM",
        _refact,
        names={
            "attn.q": "attn_q",
            "attn.kv": "attn_k|attn_v",
            "attn.c_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_gate|ffn_up",
        },
        base=_wide,
    ),
    CheckpointFamily(
        "smallthinker",
        "SmallThinkerForCausalLM",
        _smallthinker,
        names={"block_sparse_moe.primary_router": "ffn_gate_inp"},
        base=_thinker_base,
        settings={
            "norm_topk_prob": (True, False),  # not a setting of this class
            "num_experts_per_tok": lambda value, c: value == c.peek("moe_num_active_primary_experts"),
            "moe_intermediate_size": lambda value, c: value == c.peek("moe_ffn_hidden_size"),
        },
    ),
)
