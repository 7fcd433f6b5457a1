"""Tiny models with unusual skeletons: layers that run several times, norms without weights, gated windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.tiny import Tiny, block, metadata

STREAMS = 3
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


def hrm(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Layers of both stacks, without norms; later passes have no tensors."""
    keys = metadata(tiny)
    if i >= 2 * keys["hrm.layers_per_stack"]:
        return {}
    usual = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    out = {name: shape for name, shape in usual.items() if "norm" not in name}
    return out | {"attn_gate.weight": (tiny.n_heads * tiny.head_dim, tiny.width)}


def chameleon(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors, and layer norms of each head."""
    out = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    for x, heads in (("q", tiny.n_heads), ("k", tiny.n_kv_heads)):
        out |= {f"attn_{x}_norm.{kind}": (heads, tiny.head_dim) for kind in ("weight", "bias")}
    return out


def glm5next(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Delta nets and latents without rope, with streams around both; an index over pools of keys."""
    keys, width, heads, n = metadata(tiny), tiny.width, tiny.n_heads, STREAMS
    usual = {k: v for k, v in block(Tiny(**{**vars(tiny), "blocks": None}), i).items() if not k.startswith("attn_")}
    out: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,)} | usual
    for part in ("attn", "ffn"):
        out |= {f"hc_{part}_fn.weight": (n * (n + 2), n * width), f"hc_{part}_base.weight": (n * (n + 2),)}
        out[f"hc_{part}_scale.weight"] = (3,)
    if not keys["attention.head_count_kv"][i]:
        head = keys["kda.head_dim"]
        inner = heads * head
        out |= {f"attn_{x}.weight": (inner, width) for x in "qkv"} | {"attn_output.weight": (width, inner)}
        out |= {f"ssm_conv1d_{x}.weight": (1, inner, 1, keys["ssm.conv_kernel"]) for x in "qkv"}
        out |= {f"ssm_{x}_a.weight": (head, width) for x in "fg"} | {f"ssm_{x}_b.weight": (inner, head) for x in "fg"}
        out |= {"ssm_beta.weight": (heads, width), "ssm_a": (heads,), "ssm_dt.bias": (inner,)}
        return out | {"ssm_norm.weight": (head,)}
    q, rank, k_dim, v_dim = (
        20,
        *(keys[f"attention.{x}"] for x in ("kv_lora_rank", "key_length_mla", "value_length_mla")),
    )
    index, n_index = keys["attention.indexer.key_length"], keys["attention.indexer.head_count"]
    out |= {"attn_q_a.weight": (q, width), "attn_q_a_norm.weight": (q,), "attn_q_b.weight": (heads * k_dim, q)}
    out |= {"attn_kv_a_mqa.weight": (rank, width), "attn_kv_a_norm.weight": (rank,)}
    out |= {"attn_k_b.weight": (heads, rank, k_dim), "attn_v_b.weight": (heads, v_dim, rank)}
    out["attn_output.weight"] = (width, heads * v_dim)
    out |= {"indexer.attn_q_b.weight": (n_index * index, q), "indexer.attn_k.weight": (index, width)}
    out |= {"indexer.k_norm.weight": (index,), "indexer.k_norm.bias": (index,)}
    out |= {"indexer.proj.weight": (n_index, width), "indexer_compressor_gate.weight": (index, width)}
    return out | {"indexer_compressor_ape.weight": (keys["attention.indexer.kpool"], index)}


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
        Tiny(
            "hrm_text",
            "hrm_text",
            n_layers=12,
            n_kv_heads=4,
            tied=False,
            last_norm=False,
            blocks=hrm,
            root={"hrm_z_l_init": np.random.RandomState(40).standard_normal(64)},
            extra={
                "hrm.layers_per_stack": 2,
                "hrm.h_cycles": 2,
                "hrm.l_cycles": 2,
                "hrm.prefix_lm": True,
                "embedding_scale": 3.0,
            },
        ),
        Tiny("chameleon", "chameleon", tied=False, blocks=chameleon),
        Tiny("chameleon-swin", "chameleon", n_kv_heads=4, tied=False, blocks=chameleon, extra={"swin_norm": True}),
        Tiny(
            "glm5next",
            "glm5next",
            n_layers=4,
            n_kv_heads=1,
            head_dim=24,
            tied=False,
            experts=8,
            expert_ffn=24,
            shared=24,
            dense=1,
            more={"exp_probs_b.bias": 8},
            blocks=glm5next,
            extra={
                "attention.head_count_kv": [0, 1, 0, 1],
                "attention.layer_norm_epsilon": 1e-6,
                "attention.kv_lora_rank": 24,
                "attention.q_lora_rank": 20,
                "attention.key_length_mla": 20,
                "attention.value_length_mla": 16,
                "attention.indexer.head_count": 4,
                "attention.indexer.key_length": 16,
                "attention.indexer.top_k": 8,
                "attention.indexer.kpool": 4,
                "ssm.conv_kernel": 4,
                "kda.head_dim": 16,
                "kda.gate_lower_bound": -5.0,
                "hyper_connection.count": STREAMS,
                "hyper_connection.sinkhorn_iterations": 5,
                "hyper_connection.epsilon": 1e-6,
                "leading_dense_block_count": 1,
                "expert_shared_count": 1,
                "expert_gating_func": 2,
                "expert_weights_norm": True,
                "expert_weights_scale": 2.5,
                "swiglu_clamp_exp": [0.6] * 4,
                "swiglu_clamp_shexp": [0.8] * 4,
            },
        ),
    )
}
