"""Tiny models with hyper connections and keys that are compressed over positions."""

from __future__ import annotations

import numpy as np

from tests.cases.tiny import N_VOCAB, YARN, Tiny, metadata, mlp

STREAMS, LOW, GROUPS, NARROW = 4, 20, 2, 16


def deepseek4(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Blocks of 4 positions overlap and have an index; longer ones have neither."""
    keys, width, head = metadata(tiny), tiny.width, tiny.head_dim
    every, n_hash = keys["attention.compress_ratios"][i], keys["hash_layer_count"]
    heads, index = keys["attention.indexer.head_count"], keys["attention.indexer.key_length"]
    out: dict[str, tuple[int, ...]] = {f"{x}_norm.weight": (width,) for x in ("attn", "ffn")}
    for x in ("attn", "ffn"):
        out |= {f"hc_{x}_fn.weight": (STREAMS * (STREAMS + 2), STREAMS * width), f"hc_{x}_scale.weight": (3,)}
        out[f"hc_{x}_base.weight"] = (STREAMS * (STREAMS + 2),)
    out |= {"attn_q_a.weight": (LOW, width), "attn_q_a_norm.weight": (LOW,)}
    out |= {"attn_q_b.weight": (tiny.n_heads * head, LOW), "attn_sinks.weight": (tiny.n_heads,)}
    out |= {"attn_kv.weight": (head, width), "attn_kv_a_norm.weight": (head,)}
    out |= {"attn_output_a.weight": (GROUPS * NARROW, tiny.n_heads * head // GROUPS)}
    out |= {"attn_output_b.weight": (width, GROUPS * NARROW)}
    compressors = {"attn_compressor": head, "indexer_compressor": index} if every == 4 else {"attn_compressor": head}
    for name, n in compressors.items() if every else ():
        wide = 2 * n if every == 4 else n
        out |= {f"{name}_{x}.weight": (wide, width) for x in ("kv", "gate")}
        out |= {f"{name}_ape.weight": (every, wide), f"{name}_norm.weight": (n,)}
    if every == 4:
        out |= {"indexer.attn_q_b.weight": (heads * index, LOW), "indexer.proj.weight": (heads, width)}
    out |= {"ffn_gate_tid2eid.weight": (N_VOCAB, 2)} if i < n_hash else {"exp_probs_b.bias": (tiny.experts,)}
    return out | mlp(tiny, i, tiny.ffn)


_WIDTH = 64
_FN = np.random.RandomState(4).standard_normal((STREAMS, STREAMS * _WIDTH)) * 0.1
COMPRESSED = {
    "deepseek4": Tiny(
        "deepseek4",
        "deepseek4",
        width=_WIDTH,
        n_layers=4,
        n_kv_heads=1,
        head_dim=32,
        n_rot=8,
        experts=6,
        expert_ffn=24,
        shared=24,
        tied=False,
        blocks=deepseek4,
        root={
            "output_hc_fn.weight": _FN,
            "output_hc_base.weight": [0.3, -0.2, 0.1, 0.5],
            "output_hc_scale.weight": [0.8],
        },
        extra={
            **YARN,
            "attention.q_lora_rank": LOW,
            "attention.sliding_window": 8,
            "attention.compress_ratios": np.array([0, 4, 16, 4], np.int32),
            "attention.compress_rope_freq_base": 160000.0,
            "attention.output_group_count": GROUPS,
            "attention.output_lora_rank": NARROW,
            "attention.indexer.head_count": 8,
            "attention.indexer.key_length": 16,
            "attention.indexer.top_k": 3,
            "expert_gating_func": 4,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "expert_shared_count": 1,
            "hash_layer_count": 2,
            "hyper_connection.count": STREAMS,
            "hyper_connection.sinkhorn_iterations": 5,
            "hyper_connection.epsilon": 1e-6,
            "swiglu_clamp_exp": np.full(4, 0.7, np.float32),
            "swiglu_clamp_shexp": np.full(4, 0.7, np.float32),
        },
    )
}
