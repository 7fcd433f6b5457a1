"""Tiny models with streams around layers: gated ones with a table of runs of tokens, and those of an index.

And one whose rows turn by four positions.
"""

from __future__ import annotations

import numpy as np

from tests.cases.hybrids import QWEN, Shapes, _attention, _experts
from tests.cases.latents import INDEX, SIGMOID, V_DIM, indexed, row
from tests.cases.skeletons import SKELETONS
from tests.cases.tiny import XD_ROPE, Tiny, metadata

STREAMS, LOW, ROWS = 3, 12, 256


def qwen4exp(tiny: Tiny, i: int) -> Shapes:
    """A delta net, or attention with an index; the second layer takes in rows of the table."""
    keys, width = metadata(tiny), tiny.width
    wide, head, k_heads, heads = (
        STREAMS * width,
        *(keys[f"ssm.{x}"] for x in ("state_size", "group_count", "time_step_rank")),
    )
    out: Shapes = {}
    for part in ("attn", "ffn"):
        out |= {f"hc_{part}_norm.weight": (wide,), f"hc_{part}_inject.weight": (STREAMS, wide)}
        out |= {f"hc_{part}_down.weight": (LOW, wide), f"hc_{part}_up.weight": (wide, LOW)}
    if (i + 1) % 4 == 0:
        n, index = keys["attention.indexer.head_count"], keys["attention.indexer.key_length"]
        out |= _attention(tiny, i, gate=True, qk_norm=True)
        out |= {"indexer.q_proj.weight": (n * index, width), "indexer.k_proj.weight": (index, width)}
        out |= {f"indexer.{x}_norm.weight": (index,) for x in "qk"}
    else:
        inner, mixed = heads * head, 2 * k_heads * head + heads * head
        out |= {"attn_qkv.weight": (mixed, width), "attn_gate.weight": (inner, width)}
        out |= {"ssm_conv1d.weight": (mixed, 4), "ssm_dt.bias": (heads,), "ssm_a": (heads,)}
        out |= {"ssm_norm.weight": (head,), "ssm_out.weight": (width, inner)}
        out |= {f"ssm_{x}.weight": (heads, width) for x in ("beta", "alpha")}
    if i == 1:
        out |= {"ple_key.weight": (wide, width), "ple_value.weight": (width, width), "ple_conv1d.weight": (wide, 4)}
        out |= {f"ple_norm_{x}.weight": (wide,) for x in ("key", "query", "conv")}
    return out | _experts(tiny) | {"ffn_gate_inp_shexp.weight": (width,)}


def hy_v4(tiny: Tiny, i: int) -> Shapes:
    """A latent with an index, gates of all columns of heads, sinks, and shares of streams."""
    n, wide, heads = STREAMS, STREAMS * tiny.width, tiny.n_heads
    out = indexed(tiny, i) | {"attn_gate.weight": (heads * V_DIM, tiny.width), "attn_sinks.weight": (heads,)}
    for part in ("attn", "ffn"):
        out |= {f"hc_{part}_fn.weight": (2 * n, wide), f"hc_{part}_scale.weight": (2,)}
        out |= {f"hc_{part}_base.weight": (2 * n,)}
    return out


def cogvlm(tiny: Tiny, i: int) -> Shapes:
    """Every matrix twice: for tokens, and for rows of images."""
    width, ffn = tiny.width, tiny.ffn
    own = {"attn_qkv": (3 * width, width), "attn_output": (width, width)}
    both = {f"{end}{name}.weight": shape for name, shape in own.items() for end in ("", "vis_")}
    for name, shape in (("gate", (ffn, width)), ("up", (ffn, width)), ("down", (width, ffn))):
        both |= {f"ffn_{name}.weight": shape, f"vis_{name}.weight": shape}
    return both | {f"{name}.weight": (width,) for name in ("attn_norm", "ffn_norm")}


def _hy_root() -> dict[str, np.ndarray]:
    random, wide = np.random.RandomState(39), STREAMS * 64
    out = {"output_hc_fn.weight": random.standard_normal((STREAMS, wide)) * wide**-0.5}
    return out | {f"output_hc_{x}.weight": random.standard_normal(n) for x, n in (("scale", 1), ("base", STREAMS))}


def _root() -> dict[str, np.ndarray]:
    random, wide = np.random.RandomState(38), STREAMS * 64
    shapes = {"per_layer_token_embd.weight": (ROWS, 16), "output_hc_down.weight": (LOW, wide)}
    shapes["output_hc_up.weight"] = (wide, LOW)
    out = {name: random.standard_normal(shape) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    return out | {"output_hc_norm.weight": 1 + 0.1 * random.standard_normal(wide)}


# What transformers makes of a vocabulary of 320, its seed and a least size of 40.
NGRAMS = {
    "ple.layers": [1],
    "ple.ngram_size": 3,
    "ple.heads_per_ngram": 2,
    "ple.conv_kernel": 4,
    "ple.eos_token_id": 191,
    "ple.layer_multipliers": np.array([25912437101140037, 21043097849633001, 26491075874708125], np.uint64),
    "ple.head_vocab_sizes": np.array([41, 43, 47, 53], np.uint64),
    "ple.head_offsets": np.array([0, 41, 84, 131], np.uint64),
    "embedding_length_per_layer_input": 16,
}
NEWEST = SKELETONS | {
    "cogvlm": Tiny("cogvlm", "cogvlm", n_kv_heads=4, tied=False, blocks=cogvlm),
    "hunyuan_vl": Tiny("hunyuan_vl", "hunyuan_vl", qk_norm=True, extra=XD_ROPE),
    "qwen4exp": Tiny(
        "qwen4exp",
        "qwen4exp",
        n_layers=4,
        n_rot=8,
        experts=4,
        expert_ffn=24,
        shared=40,
        tied=False,
        last_norm=False,
        blocks=qwen4exp,
        root=_root(),
        extra=QWEN
        | NGRAMS
        | {
            "hyper_connection.count": STREAMS,
            "hyper_connection.low_rank": LOW,
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 16,
            "attention.indexer.top_k": 8,
            "attention.compress_ratios": [0, 0, 0, 4],
        },
    ),
    "hy_v4": row(
        "hy_v4",
        "hy_v4",
        n_layers=4,
        dense=1,
        more={"exp_probs_b.bias": 8},
        blocks=hy_v4,
        root=_hy_root(),
        extra=SIGMOID
        | INDEX
        | {
            "attention.indexer.types": [True, True, False, True],
            "leading_dense_block_count": 1,
            "swiglu_clamp_exp": [0.4] * 4,
            "hyper_connection.count": STREAMS,
            "hyper_connection.epsilon": 1e-6,
            "hyper_connection.magnitude": 1.5,
        },
    ),
}
