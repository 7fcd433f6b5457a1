"""Tiny models of mixtures of experts, and of layers with gates or sinks."""

from __future__ import annotations

import numpy as np

from tests.cases.tiny import GRANITE, YARN, Tiny, block, metadata

WINDOW = {"attention.sliding_window": 8}
SANDWICH = "attn_norm post_attention_norm ffn_norm post_ffw_norm"
BIASED = {
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}


def gated(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors and a gate: one for each head, or without windows one for each element."""
    heads, windows = metadata(tiny)["attention.head_count"], "attention.sliding_window" in tiny.extra
    n = heads[i] if isinstance(heads, list) else heads * tiny.head_dim if tiny.architecture != "laguna" else heads
    gate = n if windows or tiny.architecture != "laguna" else n * tiny.head_dim
    return block(Tiny(**{**vars(tiny), "blocks": None}), i) | {"attn_gate.weight": (gate, tiny.width)}


def merged(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors with gate and up in one, of chosen experts and of the one of all rows."""
    out = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    n, ffn, width = out.pop("ffn_gate_exps.weight")
    del out["ffn_up_exps.weight"], out["ffn_gate_shexp.weight"]
    merged = {"ffn_gate_up_exps.weight": (n, 2 * ffn, width), "ffn_up_shexp.weight": (2 * tiny.shared, width)}
    return out | merged | {"attn_sinks.weight": (tiny.n_heads,)}


def parallel(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Experts beside a network as wide as the model, and their norm."""
    out, width = block(Tiny(**{**vars(tiny), "blocks": None}), i), tiny.width
    out |= {f"ffn_{x}.weight": (width, width) for x in ("gate", "up", "down")}
    return out | {"ffn_norm_exps.weight": (width,)}


def grove(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors, and a small expert of each two."""
    out, n = block(Tiny(**{**vars(tiny), "blocks": None}), i), tiny.experts // 2
    out |= {f"ffn_{x}_chexps.weight": (n, 16, tiny.width) for x in ("gate", "up")}
    return out | {"ffn_down_chexps.weight": (n, tiny.width, 16)}


def beside(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors, and a network of all rows."""
    out = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    out |= {f"ffn_{x}.weight": (tiny.ffn, tiny.width) for x in ("gate", "up")}
    return out | {"ffn_down.weight": (tiny.width, tiny.ffn)}


GROK = {"attention.output_scale": 0.3, "attn_logit_softcapping": 1.5, "embedding_scale": 3.0, "logit_scale": 0.5}
MIXTURES = {
    tiny.name: tiny
    for tiny in (
        Tiny(
            "deepseek",
            "deepseek",
            n_layers=3,
            tied=False,
            experts=6,
            expert_ffn=24,
            shared=48,
            dense=1,
            extra={"leading_dense_block_count": 1, "expert_shared_count": 2, "expert_weights_scale": 1.5},
        ),
        Tiny(
            "deepseek2-ocr",
            "deepseek2-ocr",
            n_layers=3,
            n_kv_heads=4,
            tied=False,
            experts=6,
            expert_ffn=24,
            shared=48,
            dense=1,
            # The number of columns that turn is what converters write.
            extra={"leading_dense_block_count": 1, "expert_shared_count": 2, "rope.dimension_count": 0},
        ),
        Tiny(
            "bailingmoe",
            "bailingmoe",
            tied=False,
            experts=6,
            expert_ffn=24,
            shared=48,
            extra={"expert_shared_count": 2, "expert_weights_norm": True},
        ),
        Tiny(
            "bailingmoe2",
            "bailingmoe2",
            n_layers=3,
            n_rot=8,
            fused_qkv=True,
            qk_norm=True,
            tied=False,
            experts=8,
            expert_ffn=24,
            shared=24,
            dense=1,
            more={"exp_probs_b.bias": 8},
            extra=BIASED | {"expert_group_count": 4, "expert_group_used_count": 2},
        ),
        Tiny(
            "hy_v3",
            "hy_v3",
            n_layers=3,
            qk_norm=True,
            tied=False,
            head_dim=24,
            experts=6,
            expert_ffn=24,
            shared=24,
            dense=1,
            more={"exp_probs_b": 6},
            extra={key: n for key, n in BIASED.items() if key != "leading_dense_block_count"},
        ),
        Tiny(
            "exaone-moe",
            "exaone-moe",
            n_layers=5,
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            shared=24,
            dense=1,
            more={"exp_probs_b.bias": 6},
            extra=BIASED | WINDOW | {"attention.sliding_window_pattern": 4},
        ),
        Tiny(
            "mellum",
            "mellum",
            n_layers=5,
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            extra=WINDOW | YARN | {"attention.sliding_window_pattern": [True, True, True, False, True]},
        ),
        Tiny(
            "laguna",
            "laguna",
            n_layers=5,
            qk_norm=True,
            tied=False,
            n_rot=8,
            experts=6,
            expert_ffn=24,
            shared=40,
            dense=1,
            more={"exp_probs_b.bias": 6},
            blocks=gated,
            extra=BIASED
            | WINDOW
            | YARN
            | {
                "attention.head_count": [4, 6, 6, 6, 4],
                "rope.freq_base": 500000.0,
                "rope.freq_base_swa": 10000.0,
                "rope.dimension_count_swa": 16,
            },
        ),
        Tiny(
            "laguna-m",
            "laguna",
            n_layers=3,
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            shared=24,
            dense=1,
            more={"exp_probs_b.bias": 6},
            blocks=gated,
            extra=BIASED,
        ),
        Tiny(
            "muse-glimmer",
            "muse-glimmer",
            n_layers=5,
            qk_norm=True,
            tied=False,
            norms=SANDWICH,
            blocks=gated,
            root={
                f"blk.{i}.attn_{x}_norm.weight": np.full(16, n) for i in range(5) for x, n in (("q", 3.87), ("k", 1))
            },
            extra=WINDOW
            | {
                "attention.sliding_window_pattern": [False, True, True, True, False],
                "logit_scale": 0.4,
                "final_logit_softcapping": 2.0,
            },
        ),
        Tiny(
            "cohere2moe",
            "cohere2moe",
            n_layers=5,
            layer_norm=True,
            norms="attn_norm",
            experts=6,
            expert_ffn=24,
            shared=24,
            dense=1,
            extra=BIASED
            | WINDOW
            | {
                "attention.sliding_window_pattern": [False, True, True, True, False],
                "logit_scale": 0.25,
                "expert_weights_scale": 1.0,
            },
        ),
        Tiny(
            "granite_swa",
            "granite_swa",
            n_layers=4,
            more={"attn_sinks.weight": 4},
            extra=GRANITE
            | WINDOW
            | {
                "attention.sliding_window_pattern": [False, True, True, True],
                "attention.rope_pattern": [False, True, False, True],
            },
        ),
        Tiny(
            "granite_swa-moe",
            "granite_swa",
            n_layers=2,
            experts=4,
            ffn=32,
            shared=24,
            blocks=merged,
            extra=GRANITE | WINDOW | {"attention.sliding_window_pattern": [False, True]},
        ),
        Tiny(
            "smallthinker",
            "smallthinker",
            n_layers=5,
            experts=6,
            expert_ffn=24,
            extra=WINDOW | {"expert_gating_func": 2},
        ),
        Tiny(
            "minicpm-moe",
            "minicpm",
            experts=4,
            ffn=32,
            extra={key: n for key, n in GRANITE.items() if key != "attention.scale"},
        ),
        # Of three experts for a row two are often of one group, which then counts twice.
        Tiny(
            "grovemoe",
            "grovemoe",
            qk_norm=True,
            head_dim=32,
            tied=False,
            experts=6,
            expert_ffn=24,
            blocks=grove,
            extra={
                "experts_per_group": 2,
                "expert_group_scale": 0.5,
                "expert_chunk_feed_forward_length": 16,
                "expert_used_count": 3,
            },
        ),
        Tiny(
            "grok",
            "grok",
            experts=5,
            ffn=40,
            norms="attn_norm attn_output_norm ffn_norm layer_output_norm",
            extra=GROK,
        ),
        Tiny(
            "grok-2",
            "grok",
            experts=5,
            expert_ffn=24,
            norms="attn_norm attn_output_norm ffn_norm post_ffw_norm",
            tied=False,
            blocks=beside,
            extra=GROK
            | YARN
            | {
                "rope.scaling.yarn_beta_fast": 8.0,
                "router_logit_softcapping": 1.2,
                "final_logit_softcapping": 2.0,
                "attention.temperature_length": 512,
            },
        ),
        Tiny("arctic", "arctic", experts=5, ffn=40, tied=False, blocks=parallel),
        Tiny(
            "dbrx",
            "dbrx",
            layer_norm=True,
            norms="attn_norm attn_output_norm",
            fused_qkv=True,
            tied=False,
            experts=5,
            ffn=40,
            extra={"attention.clamp_kqv": 0.8},
        ),
    )
}
