"""Rope settings of config.json, in both formats, as GGUF keys and tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.hyperparameters import Hyperparameters
from woolly.errors import UnsupportedError


def rope_of(config: Hyperparameters, kind: str = "full_attention") -> Hyperparameters:
    """Return the parameters for one kind of layers, from `rope_parameters` or from `rope_theta` with `rope_scaling`."""
    given = config.mapping("rope_parameters")
    if any(isinstance(one, dict) for one in given.values()):
        given = given.get(kind) or {}
    elif not given:
        given = config.mapping("rope_scaling")
    old = {name: value for name in ("rope_theta", "partial_rotary_factor") if (value := config.get(name)) is not None}
    return config.inner({**old, **given})


def rope_keys(config: Hyperparameters, head_dim: int, kind: str = "full_attention") -> dict[str, Any]:
    """Return the `rope.*` keys for heads of this size. Raise UnsupportedError for a scaling without a key."""
    rope = rope_of(config, kind)
    name = rope.get("rope_type", "type", default="default")
    out: dict[str, Any] = {
        "rope.dimension_count": int(head_dim * rope.number("partial_rotary_factor", "rotary_percent", default=1.0)),
        "rope.freq_base": rope.number("rope_theta", default=config.number("rotary_emb_base", default=10000.0)),
    }
    if sections := rope.get("mrope_section", "xdrope_section"):
        out["rope.dimension_sections"] = [int(one) for one in sections][:4] + [0] * (4 - len(sections))
    if name in ("default", "mrope", "llama3", "proportional"):
        return out
    if name == "linear":
        return out | {"rope.scaling.type": "linear", "rope.scaling.factor": rope.number("factor")}
    if name in ("yarn", "deepseek_yarn"):
        return out | _yarn(config, rope)
    if name in ("longrope", "su"):
        return out | _longrope(config, rope)
    if name in ("dynamic", "xdrope") and rope.has("alpha"):
        stretch = rope.number("alpha") ** (head_dim / (head_dim - 2))
        return out | {"rope.freq_base": out["rope.freq_base"] * stretch}
    if name == "dynamic":  # has no effect within the original context
        return out
    raise UnsupportedError(
        f"{config.where}: rope scaling {name!r:.40} is not supported yet; expected one of linear, llama3, yarn,"
        " longrope"
    )


def _yarn(config: Hyperparameters, rope: Hyperparameters) -> dict[str, Any]:
    original = rope.positive(
        "original_max_position_embeddings",
        default=config.integer("original_max_position_embeddings", default=config.positive("max_position_embeddings")),
    )
    out: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope.number("factor"),
        "rope.scaling.original_context_length": original,
    }
    if not config.text("model_type").startswith("gpt_oss"):  # gpt-oss never rounds
        rope.reject("truncate", unless=(None, True))
    if rope.has("attention_factor"):
        out["rope.scaling.yarn_attn_factor"] = rope.number("attention_factor")
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if rope.has(name):
            out[f"rope.scaling.{key}"] = rope.number(name)
    return out


def yarn_magnitude(config: Hyperparameters) -> float | None:
    """Return YaRN's attention factor from `mscale` and `mscale_all_dim`, or None if one is missing."""
    rope = rope_of(config)
    if rope.has("attention_factor") or not (rope.has("mscale") and rope.has("mscale_all_dim")):
        return None
    log = 0.1 * math.log(max(rope.number("factor"), 1.0))
    return (rope.number("mscale") * log + 1.0) / (rope.number("mscale_all_dim") * log + 1.0)


def yarn_magnitude_keys(config: Hyperparameters, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of YaRN's attention factor, if a file with a log multiplier would compute another factor."""
    rope, multiplier = rope_of(config), float(keys["rope.scaling.yarn_log_multiplier"])
    log = 0.1 * math.log(max(rope.number("factor"), 1.0))
    wanted = rope.number("attention_factor", default=yarn_magnitude(config) or 1.0 + log)
    is_latent = "attention.kv_lora_rank" in keys  # MLA scales the attention scores by the multiplier instead
    if math.isclose(wanted, 1.0 if is_latent else (1.0 + log) / (1.0 + log * multiplier), rel_tol=1e-6):
        return {}
    out = {"rope.scaling.yarn_attn_factor": wanted}
    return out if is_latent else out | {"rope.scaling.yarn_log_multiplier": None}


def _longrope(config: Hyperparameters, rope: Hyperparameters) -> dict[str, Any]:
    context = config.positive("max_position_embeddings")
    original = rope.positive(
        "original_max_position_embeddings", default=config.integer("original_max_position_embeddings", default=context)
    )
    usual = 1.0
    if context > original:
        usual = math.sqrt(1 + math.log(context / original) / math.log(max(2, original)))
    factor = rope.number("long_mscale", "attention_factor", default=usual)
    if rope.has("long_mscale"):
        rope.reject("short_mscale", unless=(None, factor))
    return {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": factor}


def rope_tensors(config: Hyperparameters, keys: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return rope frequency divisors that are stored as tensors."""
    rope = rope_of(config)
    name = rope.get("rope_type", "type", default="default")
    n_rot, head = int(keys["rope.dimension_count"]), int(keys["attention.key_length"])
    if name == "llama3":
        return {"rope_freqs.weight": _llama3(rope, float(keys["rope.freq_base"]), n_rot)}
    if name == "proportional":  # in Gemma 4, pairs without rotation have infinite divisors
        n_turned = int(rope.number("partial_rotary_factor", default=1.0) * head) // 2
        values = np.where(np.arange(head // 2) < n_turned, 1.0, 1e30)
        return {"rope_freqs.weight": values.astype(np.float32)}
    if name in ("longrope", "su"):
        lists = {x: rope.items(f"{x}_factor", (int, float), n_rot // 2) for x in ("long", "short")}
        return {f"rope_factors_{x}.weight": np.asarray(values, np.float32) for x, values in lists.items()}
    return {}


def _llama3(rope: Hyperparameters, base: float, n_rot: int) -> NDArray[np.float32]:
    """Return the divisors: the factor for low frequencies, 1 for high frequencies, blended in between."""
    factor, low, high = (rope.number(x) for x in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rope.positive("original_max_position_embeddings")
    wavelengths = 2 * math.pi / base ** (-np.arange(0, n_rot, 2) / n_rot)
    smooth = (original / wavelengths - low) / (high - low)
    blended = 1 / ((1 - smooth) / factor + smooth)
    long, short = wavelengths > original / low, wavelengths < original / high
    divisors: NDArray[np.float32] = np.where(long, factor, np.where(short, 1.0, blended)).astype(np.float32)
    return divisors
