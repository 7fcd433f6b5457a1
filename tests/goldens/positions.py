"""Rotary positions and windows of a GGUF file as transformers configuration."""

import numpy as np

from tests.cases.tiny import LLAMA3


def rope_parameters(file):
    base, kind = float(file.get("rope.freq_base", 10000.0)), file.get("rope.scaling.type")
    head, n_rot = int(file.get("attention.key_length", 0)), int(file.get("rope.dimension_count", 0))
    out = {"rope_type": "default", "rope_theta": base}
    if n_rot and head:
        out["partial_rotary_factor"] = n_rot / head
    if "rope_freqs.weight" in file.tensors:
        out |= {"rope_type": "llama3", **LLAMA3}
    elif file.get("rope.scaling.alpha"):
        out["rope_theta"] = base * float(file.get("rope.scaling.alpha")) ** (head / (head - 2))
    elif kind == "linear":
        out |= {"rope_type": "linear", "factor": float(file.get("rope.scaling.factor"))}
    elif kind == "yarn":
        original = int(file.get("rope.scaling.original_context_length"))
        factor = float(file.get("rope.scaling.factor"))
        out |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        if file.architecture == "gpt-oss":
            out |= {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
        if file.get("rope.scaling.yarn_log_multiplier"):
            out |= {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
            out |= {"llama_4_scaling_beta": float(file.get("attention.temperature_scale", 0.0))}
    elif "rope_factors_long.weight" in file.tensors:
        lists = {f"{x}_factor": file.tensors[f"rope_factors_{x}.weight"].tolist() for x in ("long", "short")}
        original = int(file.get("rope.scaling.original_context_length", file.get("context_length")))
        out |= {"rope_type": "longrope", **lists, "original_max_position_embeddings": original}
        out |= {"attention_factor": float(file.get("rope.scaling.attn_factor", 1.0)), "factor": 2.0}
    return out


def windows(file):
    """Sliding-window flag of each layer."""
    periods = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "olmo2": 4, "afmoe": 4}
    period = (periods | {"deepseek4": 0}).get(file.architecture)
    pattern, n = file.get("attention.sliding_window_pattern", period), int(file.get("block_count"))
    if np.ndim(pattern):
        return [bool(x) for x in pattern]
    if file.architecture == "laguna":
        return [i % 4 != 0 for i in range(n)]
    return [int(pattern) == 0 or i % int(pattern) < int(pattern) - 1 for i in range(n)]
