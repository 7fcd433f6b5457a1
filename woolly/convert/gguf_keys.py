"""Hyperparameters common to decoders, as GGUF keys."""

from __future__ import annotations

from typing import Any

from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_keys

Keys = dict[str, Any]
_EPS = ("rms_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layer_norm_eps", "layernorm_epsilon")
_WINDOWS = ("sliding_attention", "chunked_attention")


def transformer_keys(c: Hyperparameters, norm: str = "rms") -> Keys:
    """Return the keys of sizes, heads, rope and norms."""
    epsilon = "layer_norm_rms_epsilon" if norm == "rms" else "layer_norm_epsilon"
    names = _EPS if norm == "rms" else (*_EPS[2:], *_EPS[:2])
    return {
        "block_count": c.n_layers,
        "context_length": c.positive("max_position_embeddings", "model_max_length", "n_ctx", "n_positions"),
        "embedding_length": c.positive("hidden_size", "n_embd", "d_model"),
        "feed_forward_length": _widths(c),
        f"attention.{epsilon}": c.number(*names),
    } | head_keys(c)


def _widths(c: Hyperparameters) -> int | list[int]:
    """Return the MLP width, or a list if it differs per layer."""
    if isinstance(c.get("intermediate_size"), list):
        listed = c.items("intermediate_size", int, c.n_layers)
        return listed if len(set(listed)) > 1 else listed[0]
    return c.integer("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff")


def head_keys(c: Hyperparameters) -> Keys:
    """Return the keys of heads and rope."""
    heads = c.positive("num_attention_heads", "n_head")
    head = c.integer("head_dim", default=0) or c.positive("hidden_size", "n_embd", "d_model") // heads
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": c.integer("num_key_value_heads", default=heads),
        "attention.key_length": head,
        "attention.value_length": head,
    } | rope_keys(c, head)


def layer_kinds(c: Hyperparameters, period: int | None = None) -> list[str]:
    """Return the attention type of each layer: as listed in the file, or full attention in every `period`-th layer."""
    if c.get("layer_types") is not None:
        return c.items("layer_types", str, c.n_layers)
    period = c.integer("sliding_window_pattern", "_sliding_window_pattern", default=period or 0)
    return ["full_attention" if not period or (i + 1) % period == 0 else _WINDOWS[0] for i in range(c.n_layers)]


def window_keys(c: Hyperparameters, period: int | None = None) -> Keys:
    """Return the keys of the sliding window and of the layers that use it."""
    size = c.integer("sliding_window", "attention_chunk_size", default=0)
    flags = [kind in _WINDOWS for kind in layer_kinds(c, period)]
    if not size or not any(flags):
        return {}
    return {"attention.sliding_window": size, "attention.sliding_window_pattern": flags}


def own_window_keys(c: Hyperparameters) -> Keys:
    """Return the keys of models with `use_sliding_window`, which have windows from layer `max_window_layers` on."""
    if not c.flag("use_sliding_window"):
        return {}
    size, first = c.positive("sliding_window", default=4096), c.integer("max_window_layers", default=28)
    kinds = c.get("layer_types")
    flags = [kind in _WINDOWS for kind in kinds] if kinds else [i >= first for i in range(c.n_layers)]
    if not any(flags):
        return {}
    if not all(flags):
        c.reject("max_window_layers", unless=())  # readers only support a window in all layers
    return {"attention.sliding_window": size}


def every_window_keys(c: Hyperparameters) -> Keys:
    """Return the keys of models with the same window in all layers; empty if the window covers the context."""
    size = c.integer("sliding_window", default=0)
    return {"attention.sliding_window": size} if 0 < size < c.positive("max_position_embeddings") else {}


def expert_keys(c: Hyperparameters, *, scoring: str | None = None, normalize: bool | None = None) -> Keys:
    """Return the MoE keys, empty for models without experts."""
    count = c.integer("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", default=0)
    if not count:
        return {}
    inner = _first(c.get("moe_intermediate_size", "intermediate_size"))
    out: Keys = {"expert_count": count, "expert_feed_forward_length": int(inner)}
    used = _first(c.get("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"))
    out["expert_used_count"] = c.inner({"num_experts_per_tok": used}).positive("num_experts_per_tok")
    if (groups := c.integer("n_group", "num_expert_group", default=1)) > 1:
        out |= {"expert_group_count": groups, "expert_group_used_count": c.positive("topk_group")}
    if (scale := c.number("routed_scaling_factor", "route_scale", default=1.0)) != 1.0:
        out["expert_weights_scale"] = scale
    scoring = c.get("scoring_func", default=scoring)
    if scoring is not None:
        out["expert_gating_func"] = {"softmax": 1, "sigmoid": 2}.get(str(scoring), 0)
    if normalize is not None:
        out["expert_weights_norm"] = normalize
    return out


def dense_first(c: Hyperparameters) -> int:
    """Return the number of dense layers before the first MoE layer."""
    kinds = c.get("mlp_layer_types")
    if isinstance(kinds, list):
        return next((i for i, kind in enumerate(kinds) if kind == "sparse"), len(kinds))
    flags = c.get("moe_layer_freq")
    if isinstance(flags, list):
        return next((i for i, flag in enumerate(flags) if flag), len(flags))
    return c.integer("first_k_dense_replace", "num_dense_layers", default=0)


def _first(value: Any) -> Any:
    """Return a number that some files store per layer."""
    return value[0] if isinstance(value, list) and value and len(set(map(str, value))) == 1 else value
