"""Tiny models with unusual skeletons: layers that run several times, norms without weights, gated windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.tiny import Tiny, block, metadata

WINDOWS = [True, True, True, False, True]


def gated(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors and a gate for each head."""
    heads = np.broadcast_to(metadata(tiny)["attention.head_count"], tiny.n_layers)[i]
    return block(Tiny(**{**vars(tiny), "blocks": None}), i) | {"attn_gate.weight": (int(heads), tiny.width)}


def talkie(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """No weights of norms, but a gain per head, and factors of the results of a layer."""
    usual = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    out = {name: shape for name, shape in usual.items() if "norm" not in name}
    out |= {"attn_q_norm.weight": (tiny.n_heads, 1), "layer_output_scale.weight": (1,)}
    return out | {"attn_output.scale": (1,), "ffn_down.scale": (1,)}


SPARK = {
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": WINDOWS,
    "rope.freq_base_swa": 10000.0,
    "rope.dimension_count_swa": 16,
}
GATED: dict[str, Any] = {"n_layers": 5, "n_rot": 8, "rope_base": 1e6, "blocks": gated}
SKELETONS = {
    tiny.name: tiny
    for tiny in (
        Tiny("nanbeige", "nanbeige", tied=False, extra={"num_loops": 3}),
        Tiny(
            "nanbeige-unnormed",
            "nanbeige",
            llama3_rope=True,
            head_dim=32,
            extra={"num_loops": 2, "skip_loop_final_norm": True},
        ),
        Tiny(
            "talkie",
            "talkie",
            n_layers=3,
            n_kv_heads=4,
            tied=False,
            last_norm=False,
            blocks=talkie,
            extra={"attention.layer_norm_rms_epsilon": 1.19e-7, "logit_scale": 0.7},
        ),
        Tiny("spark2_5", "spark2_5", fused_qkv=True, tied=False, extra=SPARK, **GATED),
        Tiny(
            "spark2_5-heads",
            "spark2_5",
            extra=SPARK | {"attention.head_count": [4, 4, 4, 6, 4], "attention.head_count_kv": [2, 2, 2, 3, 2]},
            **GATED,
        ),
        Tiny(
            "maple",
            "maple",
            n_layers=5,
            n_rot=8,
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            extra={
                "attention.sliding_window": 7,
                "attention.sliding_window_pattern": WINDOWS,
                "swiglu_clamp_exp": [0.6] * 4 + [0.0],
            },
        ),
    )
}
