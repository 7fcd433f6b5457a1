"""Tiny models whose layers differ: in heads, gates, sinks, or in having attention at all."""

from __future__ import annotations

from tests.cases.tiny import Tiny, block, llama3_divisors, metadata

BIASED = {
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
}


def mimo2(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Heads of 24 for K and 16 for V, twice as many under windows, which have sinks."""
    usual = {k: v for k, v in block(Tiny(**{**vars(tiny), "blocks": None}), i).items() if not k.startswith("attn_")}
    width, keys = tiny.width, metadata(tiny)
    kv, window = keys["attention.head_count_kv"][i], keys["attention.sliding_window_pattern"][i]
    out: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,), "attn_output.weight": (width, 4 * 16)}
    out |= {"attn_q.weight": (4 * 24, width), "attn_k.weight": (kv * 24, width), "attn_v.weight": (kv * 16, width)}
    return out | usual | ({"attn_sinks.weight": (4,)} if window else {})


def afmoe(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors and a gate as wide as the heads."""
    return block(Tiny(**{**vars(tiny), "blocks": None}), i) | {"attn_gate.weight": (64, tiny.width)}


def step35(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors and a gate for each head; windows have more heads."""
    heads = metadata(tiny)["attention.head_count"][i]
    return block(Tiny(**{**vars(tiny), "blocks": None}), i) | {"attn_gate.weight": (heads, tiny.width)}


def deci(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The second layer has a matrix in place of attention."""
    usual = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    return {k: v for k, v in usual.items() if i != 1 or k not in ("attn_q.weight", "attn_k.weight", "attn_v.weight")}


LLAMA4 = {
    "n_layers": 5,
    "tied": False,
    "experts": 4,
    "expert_ffn": 24,
    "shared": 24,
    "extra": {"interleave_moe_layer_step": 1},
}
CHUNKS = {
    "attention.sliding_window": 7,
    "attention.temperature_scale": 0.3,
    "attention.temperature_length": 9,
}
WINDOWED = {
    tiny.name: tiny
    for tiny in (
        Tiny("llama4", "llama4", **LLAMA4),
        # Other engines know chunks of 8192 alone.
        Tiny("llama4-chunks", "llama4", **LLAMA4 | {"extra": LLAMA4["extra"] | CHUNKS}),
        Tiny(
            "mimo2",
            "mimo2",
            n_layers=4,
            n_rot=8,
            tied=False,
            experts=6,
            expert_ffn=24,
            dense=1,
            rope_base=5e6,
            blocks=mimo2,
            more={"exp_probs_b.bias": 6, "nextn.enorm.weight": 64},
            extra=BIASED
            | {
                "nextn_predict_layers": 1,
                "attention.sliding_window": 8,
                "attention.sliding_window_pattern": [False, True, True, True],
                "attention.head_count_kv": [1, 2, 2, 2],
                "attention.key_length": 24,
                "attention.value_length": 16,
                "attention.value_scale": 0.7,
                "rope.freq_base_swa": 10000.0,
            },
        ),
        # Half of a head turns without a window: divisors of the other half are 1.
        Tiny(
            "step35",
            "step35",
            n_layers=4,
            head_dim=32,
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            shared=24,
            dense=1,
            blocks=step35,
            more={"exp_probs_b.bias": 6},
            root={"rope_freqs.weight": [*llama3_divisors(Tiny("", "", head_dim=16)).tolist(), *(1.0,) * 8]},
            extra=BIASED
            | {
                "attention.sliding_window": 8,
                "attention.sliding_window_pattern": [False, True, True, False],
                "attention.head_count": [4, 6, 6, 4],
                "attention.head_count_kv": [2, 2, 2, 2],
                "expert_weights_scale": 2.5,
                "rope.freq_base_swa": 500.0,
                "swiglu_clamp_exp": [0.0, 0.0, 0.4, 0.5],
                "swiglu_clamp_shexp": [0.3, 0.0, 0.35, 0.0],
            },
        ),
        Tiny(
            "deci-linear",
            "deci",
            n_layers=3,
            blocks=deci,
            extra={"attention.head_count": [4, 4, 4], "attention.head_count_kv": [2, 0, 2]},
        ),
        Tiny(
            "afmoe",
            "afmoe",
            n_layers=5,
            qk_norm=True,
            tied=False,
            norms="attn_norm post_attention_norm ffn_norm post_ffw_norm",
            experts=6,
            expert_ffn=24,
            shared=24,
            dense=1,
            blocks=afmoe,
            more={"exp_probs_b.bias": 6},
            extra=BIASED | {"attention.sliding_window": 8, "expert_weights_scale": 2.5},
        ),
    )
}
