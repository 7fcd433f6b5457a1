"""Tiny models of RWKV: a state of each head instead of keys and values, and rows that look back by one."""

from __future__ import annotations

from tests.cases.tiny import Tiny

Shapes = dict[str, tuple[int, ...]]


def _rwkv7(tiny: Tiny, i: int) -> Shapes:
    n, ranks = tiny.width, {"w": 8, "a": 6, "v": 5 if i else 6, "g": 12}
    out = {f"{name}.{end}": (n,) for name in ("attn_norm", "attn_norm_2", "time_mix_ln") for end in ("weight", "bias")}
    out |= {f"time_mix_{x}1.weight": (rank, n) for x, rank in ranks.items()}
    out |= {f"time_mix_{x}2.weight": (n, rank) for x, rank in ranks.items()}
    out |= {f"time_mix_{x}.weight": (n,) for x in ("w0", "a0", "v0", "k_k", "k_a", "r_k")}
    out |= {f"time_mix_{x}.weight": (n, n) for x in ("receptance", "key", "value", "output")}
    out |= {"time_mix_lerp_fused.weight": (6, 1, 1, n), "channel_mix_lerp_k.weight": (1, 1, n)}
    return out | {"channel_mix_key.weight": (tiny.ffn, n), "channel_mix_value.weight": (n, tiny.ffn)}


def _arwkv7(tiny: Tiny, i: int) -> Shapes:
    """RWKV-7's tensors in place of attention; one of the two has no gate and no norm of heads."""
    out, n = _rwkv7(tiny, i), tiny.width
    bare = "bare" in tiny.name
    drop = ("attn_norm.bias", "attn_norm_2", "channel_mix", *(("time_mix_g", "time_mix_ln") if bare else ()))
    out = {name: shape for name, shape in out.items() if not name.startswith(drop)}
    out["time_mix_lerp_fused.weight"] = (5 if bare else 6, 1, 1, n)
    out |= {"ffn_norm.weight": (n,), "ffn_down.weight": (n, tiny.ffn)}
    return out | {f"ffn_{x}.weight": (tiny.ffn, n) for x in ("gate", "up")}


def _rwkv6(tiny: Tiny, i: int) -> Shapes:
    n = tiny.width
    out = {f"{name}.{end}": (n,) for name in ("attn_norm", "attn_norm_2", "time_mix_ln") for end in ("weight", "bias")}
    out |= {f"time_mix_{x}.weight": (n, n) for x in ("receptance", "key", "value", "gate", "output")}
    out |= {"time_mix_w1.weight": (30, n), "time_mix_w2.weight": (5, n, 6), "time_mix_lerp_x.weight": (1, 1, n)}
    out |= {"time_mix_lerp_fused.weight": (5, 1, 1, n)}
    out |= {"time_mix_decay.weight": (n,), "time_mix_decay_w1.weight": (10, n), "time_mix_decay_w2.weight": (n, 10)}
    out |= {"time_mix_first.weight": (n // 64, 64), "channel_mix_receptance.weight": (n, n)}
    out |= {f"channel_mix_lerp_{x}.weight": (1, 1, n) for x in "kr"}
    return out | {"channel_mix_key.weight": (tiny.ffn, n), "channel_mix_value.weight": (n, tiny.ffn)}


def _rwkv6qwen2(tiny: Tiny, i: int) -> Shapes:
    """RWKV-6's tensors in place of attention, without norms of heads; two heads share a key and a value."""
    out, n = _rwkv6(tiny, i), tiny.width
    drop = ("attn_norm.bias", "attn_norm_2", "channel_mix", "time_mix_ln", "time_mix_first")
    out = {name: shape for name, shape in out.items() if not name.startswith(drop)}
    out |= {f"time_mix_{x}.weight": (n // 2, n) for x in ("key", "value")}
    out |= {f"time_mix_{x}.bias": (m,) for x, m in (("receptance", n), ("key", n // 2), ("value", n // 2))}
    out |= {"ffn_norm.weight": (n,), "ffn_down.weight": (n, tiny.ffn)}
    return out | {f"ffn_{x}.weight": (tiny.ffn, n) for x in ("gate", "up")}


TOP_NORM = {
    f"token_embd_norm.{end}": [at + 0.005 * i for i in range(128)] for end, at in (("weight", 0.7), ("bias", -0.3))
}
# Of the models whose blocks are RWKV's own; the others stand on Qwen 2.5.
OWN_BLOCKS = {
    "width": 128,  # llama.cpp computes heads of 64 alone
    "tied": False,
    "layer_norm": True,
    "n_layers": 3,
    "biases": "output_norm",
    "factors": {"time_mix_lerp_fused.weight": 4.0, "channel_mix_lerp_k.weight": 4.0},
    "root": TOP_NORM,
}
RWKV = {
    tiny.name: tiny
    for tiny in (
        Tiny(
            "rwkv6",
            "rwkv6",
            blocks=_rwkv6,
            **OWN_BLOCKS,
            extra={
                "attention.head_count": 0,
                "wkv.head_size": 64,
                "token_shift_count": 2,
                "rescale_every_n_layers": 2,
                "time_mix_extra_dim": 6,
                "time_decay_extra_dim": 10,
            },
        ),
        *(
            Tiny(
                name,
                "arwkv7",
                width=128,
                tied=False,
                blocks=_arwkv7,
                factors={"time_mix_lerp_fused.weight": 4.0},
                extra={
                    "attention.head_count": 0,
                    "wkv.head_size": 64,
                    "token_shift_count": 1,
                    "attention.decay_lora_rank": 8,
                    "attention.iclr_lora_rank": 6,
                    "attention.value_residual_mix_lora_rank": 5,
                    "attention.gate_lora_rank": 12,
                },
            )
            for name in ("arwkv7", "arwkv7-bare")
        ),
        Tiny(
            "rwkv6qwen2",
            "rwkv6qwen2",
            width=256,
            tied=False,
            blocks=_rwkv6qwen2,
            factors={"time_mix_lerp_fused.weight": 4.0},
            extra={
                "attention.head_count": 0,
                "attention.head_count_kv": 2,
                "wkv.head_size": 64,
                "token_shift_count": 1,
                "time_mix_extra_dim": 6,
                "time_decay_extra_dim": 10,
            },
        ),
        Tiny(
            "rwkv7",
            "rwkv7",
            blocks=_rwkv7,
            **OWN_BLOCKS,
            extra={
                "attention.head_count": 0,
                "wkv.head_size": 64,
                "token_shift_count": 2,
                "attention.decay_lora_rank": 8,
                "attention.iclr_lora_rank": 6,
                "attention.value_residual_mix_lora_rank": 5,
                "attention.gate_lora_rank": 12,
            },
        ),
    )
}
