"""Tiny models of the first years: layer norms, positions from a table or by distance, both parts side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.latents import latent
from tests.cases.tiny import N_VOCAB, Tiny, block

NORMS = "attn_norm ffn_norm output_norm"
ALL = f"{NORMS} attn_output ffn_up ffn_down"
WHOLE: dict[str, Any] = {"layer_norm": True, "fused_qkv": True, "mlp": "plain"}
EVEN = {"n_kv_heads": 4}  # every head of q has its own of k and v


def normal(seed: int, *shape: int) -> Any:
    return np.random.RandomState(seed).standard_normal(shape) / 8


def bare(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors without norms."""
    usual = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    return {name: shape for name, shape in usual.items() if "norm" not in name}


def doubled(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors, of half the width that the file names."""
    return block(Tiny(**{**vars(tiny), "blocks": None, "extra": {}}), i)


def plamo3(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors; names of norms after blocks have no suffix."""
    usual = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    return {name.removesuffix(".weight") if name.startswith("post_") else name: n for name, n in usual.items()}


SMALL: dict[str, Any] = {"n_layers": 40, "width": 16, "n_heads": 2, "n_kv_heads": 2, "head_dim": 8, "ffn": 24}
TABLE = {"position_embd.weight": normal(4, 512, 64)}
FACTORS = {
    f"rope_factors_{kind}.weight": [1.0 + step * i for i in range(4)] for kind, step in (("long", 0.7), ("short", 0.1))
}
LATENT = {
    "attention.kv_lora_rank": 24,
    "attention.q_lora_rank": 20,
    "attention.key_length": 20,
    "attention.value_length": 16,
}
OLDER = {
    tiny.name: tiny
    for tiny in (
        Tiny(
            "phi2",
            "phi2",
            **WHOLE,
            norms="attn_norm",
            n_rot=8,
            qkv_bias=True,
            biases=ALL,
            tied=False,
            root={"output.bias": normal(8, N_VOCAB)},
        ),
        Tiny(
            "gptj",
            "gptj",
            layer_norm=True,
            mlp="plain",
            **EVEN,
            norms="attn_norm",
            n_rot=8,
            biases="attn_norm output_norm ffn_up ffn_down",
            tied=False,
            root={"output.bias": normal(9, N_VOCAB)},
        ),
        Tiny("falcon", "falcon", **WHOLE, norms="attn_norm", n_kv_heads=1, biases="attn_norm output_norm"),
        Tiny(
            "falcon-40b",
            "falcon",
            **WHOLE,
            norms="attn_norm attn_norm_2",
            biases="attn_norm attn_norm_2 output_norm",
            tied=False,
        ),
        Tiny("gpt2", "gpt2", **WHOLE, **EVEN, qkv_bias=True, biases=ALL, root=TABLE),
        Tiny("starcoder", "starcoder", **WHOLE, n_kv_heads=1, qkv_bias=True, biases=ALL, root=TABLE),
        Tiny(
            "gptneox",
            "gptneox",
            **WHOLE,
            **EVEN,
            n_rot=4,
            qkv_bias=True,
            biases=ALL,
            tied=False,
            extra={"use_parallel_residual": True},
        ),
        Tiny(
            "gptneox-in-turn",
            "gptneox",
            **WHOLE,
            **EVEN,
            n_rot=4,
            qkv_bias=True,
            biases=ALL,
            tied=False,
            extra={"use_parallel_residual": False},
        ),
        Tiny("codeshell", "codeshell", layer_norm=True, mlp="plain", qkv_bias=True, biases=ALL, tied=False),
        Tiny(
            "bloom",
            "bloom",
            **WHOLE,
            ffn=256,
            **EVEN,
            qkv_bias=True,
            biases=ALL,
            root={"token_embd_norm.weight": 1 + normal(2, 64), "token_embd_norm.bias": normal(3, 64)},
        ),
        Tiny(
            "mpt",
            "mpt",
            **WHOLE,
            n_heads=6,
            n_kv_heads=6,
            width=96,
            ffn=384,
            extra={"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.7},
        ),
        Tiny(
            "jais",
            "jais",
            layer_norm=True,
            fused_qkv=True,
            **EVEN,
            qkv_bias=True,
            tied=False,
            biases=f"{ALL} ffn_gate",
            extra={"attention.max_alibi_bias": 8.0},
        ),
        Tiny(
            "qwen",
            "qwen",
            fused_qkv=True,
            **EVEN,
            qkv_bias=True,
            tied=False,
            blocks=doubled,
            extra={"feed_forward_length": 192},
        ),
        # Other engines know the kind only from these 32 or 40 layers.
        Tiny("baichuan", "baichuan", **SMALL | {"n_layers": 32}, tied=False),
        Tiny("baichuan-13b", "baichuan", **SMALL, tied=False),
        Tiny("refact", "refact", n_kv_heads=1, tied=False),
        Tiny("olmo", "olmo", layer_norm=True, blocks=bare, last_norm=False, extra={"attention.clamp_kqv": 0.7}),
        Tiny("orion", "orion", layer_norm=True, biases=NORMS, tied=False),
        Tiny("jais2", "jais2", layer_norm=True, mlp="plain", qkv_bias=True, **EVEN, biases=ALL, tied=False),
        Tiny("plamo", "plamo", norms="attn_norm", tied=False),
        Tiny(
            "plamo3",
            "plamo3",
            n_layers=9,
            fused_qkv=True,
            mlp="fused",
            qk_norm=True,
            norms="attn_norm post_attention_norm ffn_norm post_ffw_norm",
            blocks=plamo3,
            rope_base=1e6,
            extra={"attention.sliding_window": 8, "attention.sliding_window_pattern": 8, "rope.freq_base_swa": 10000.0},
        ),
        Tiny(
            "openelm",
            "openelm",
            fused_qkv=True,
            qk_norm=True,
            n_layers=3,
            extra={
                "attention.head_count": [4, 4, 6],
                "attention.head_count_kv": [1, 2, 3],
                "feed_forward_length": [48, 64, 96],
            },
        ),
        Tiny("maincoder", "maincoder", qk_norm=True),
        Tiny("minicpm3", "minicpm3", **EVEN, n_rot=8, blocks=latent, root=FACTORS, extra=LATENT),
        Tiny(
            "plm",
            "plm",
            **EVEN,
            n_rot=8,
            mlp="plain",
            blocks=latent,
            extra=LATENT | {"attention.q_lora_rank": 0},
        ),
    )
}
