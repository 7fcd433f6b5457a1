"""A tiny Gemma 3n: four streams, layer inputs, and layers that share K and V."""

from __future__ import annotations

import numpy as np

from tests.cases.tiny import N_VOCAB, Tiny

# Other engines know 20 layers with K and V of their own, layer inputs of 256, detours of 64 and this softcap alone.
WIDTH, EXTRA, LAYERS, RANK, SOFTCAP = 32, 256, 22, 64, 30.0
FFN = 256  # of which some gates are well above their mean


def gemma3n(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """One layer; those that share K and V have matrices for them nevertheless, as published files do."""
    norms = "attn_norm post_attention_norm ffn_norm post_ffw_norm post_norm altup_router_norm laurel_post_norm"
    out: dict[str, tuple[int, ...]] = {f"{name}.weight": (WIDTH,) for name in norms.split()}
    out |= {"attn_q.weight": (32, WIDTH), "attn_output.weight": (WIDTH, 32)}
    out |= {f"attn_{x}.weight": (16, WIDTH) for x in "kv"} | {f"attn_{x}_norm.weight": (8,) for x in "qk"}
    out |= {"ffn_gate.weight": (FFN, WIDTH), "ffn_up.weight": (FFN, WIDTH), "ffn_down.weight": (WIDTH, FFN)}
    out |= {"inp_gate.weight": (EXTRA, WIDTH), "proj.weight": (WIDTH, EXTRA)}
    out |= {"altup_router.weight": (4, WIDTH), "altup_predict_coef.weight": (16, 4)}
    out |= {"altup_correct_coef.weight": (4, 4), "altup_correct_scale.weight": (WIDTH,)}
    return out | {"laurel_l.weight": (RANK, WIDTH), "laurel_r.weight": (WIDTH, RANK)}


def _matrices(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape) * shape[-1] ** -0.5


GEMMA3N = Tiny(
    "gemma3n",
    "gemma3n",
    width=WIDTH,
    n_layers=LAYERS,
    head_dim=8,
    ffn=FFN,
    rope_base=1e6,
    blocks=gemma3n,
    # Scores are not scaled: with norms near 1 the softmax would be all or nothing.
    factors={"attn_q_norm.weight": 0.3, "post_ffw_norm.weight": 0.3, "post_attention_norm.weight": 0.5},
    extra={
        "attention.sliding_window": 8,
        "rope.freq_base_swa": 10000.0,
        "embedding_length_per_layer_input": EXTRA,
        "attention.shared_kv_layers": LAYERS - 20,
        "altup.num_inputs": 4,
        "altup.active_idx": 0,
        "final_logit_softcapping": SOFTCAP,
    },
    root={
        "altup_proj.weight": _matrices(1, 3, WIDTH, WIDTH),
        "altup_unembd_proj.weight": _matrices(2, 3, WIDTH, WIDTH),
        "per_layer_token_embd.weight": _matrices(3, N_VOCAB, LAYERS * EXTRA),
        "per_layer_model_proj.weight": _matrices(4, LAYERS * EXTRA, WIDTH),
        "per_layer_proj_norm.weight": 1.0 + _matrices(5, EXTRA),
    },
)
