"""Tiny masked diffusion models: every row sees every row, and a token of the vocabulary is the mask."""

from __future__ import annotations

from tests.cases.tiny import Tiny

MASK = 300
_MASKED = {"tokenizer.ggml.mask_token_id": MASK}
_UNSHIFTED = _MASKED | {"diffusion.shift_logits": False}
_BIDIRECTIONAL = {"attention.causal": False}

DIFFUSION = {
    tiny.name: tiny
    for tiny in (
        Tiny("dream", "dream", qkv_bias=True, extra=_BIDIRECTIONAL, shared_metadata=_MASKED),
        Tiny(
            "rnd1",
            "rnd1",
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            extra=_BIDIRECTIONAL,
            shared_metadata=_MASKED,
        ),
        Tiny("llada", "llada", n_kv_heads=4, tied=False, extra=_BIDIRECTIONAL, shared_metadata=_UNSHIFTED),
        Tiny(
            "llada-moe",
            "llada-moe",
            n_kv_heads=4,
            qk_norm=True,
            tied=False,
            experts=6,
            expert_ffn=24,
            extra=_BIDIRECTIONAL | {"expert_weights_scale": 1.5},
            shared_metadata=_UNSHIFTED,
        ),
    )
}
