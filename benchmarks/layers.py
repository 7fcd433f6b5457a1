"""Shapes of tensors of layers that differ from each other: recurrent ones, those with a latent, dense ones first."""

from __future__ import annotations

from typing import Any, Protocol

Tensors = dict[str, tuple[int, ...]]


class Numbers(Protocol):
    """Sizes and types of a layer."""

    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    keys: dict[str, Any]


def _gated(width: int, ffn: int, end: str = "") -> Tensors:
    return {
        f"ffn_gate{end}.weight": (ffn, width),
        f"ffn_up{end}.weight": (ffn, width),
        f"ffn_down{end}.weight": (width, ffn),
    }


def _attention(s: Numbers, q_rows: int) -> Tensors:
    kv = s.kv_heads * s.head_dim
    out: Tensors = {"attn_q.weight": (q_rows, s.width), "attn_output.weight": (s.width, s.heads * s.head_dim)}
    out |= {f"attn_{x}.weight": (kv, s.width) for x in "kv"}
    return out | {f"attn_{x}_norm.weight": (s.head_dim,) for x in "qk"}


def gemma3(s: Numbers, i: int) -> Tensors:
    """Norms around both blocks."""
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    out: Tensors = {f"{name}.weight": (s.width,) for name in norms}
    return out | _attention(s, s.heads * s.head_dim) | _gated(s.width, s.ffn)


def qwen2(s: Numbers, i: int) -> Tensors:
    """Biases of q, k and v."""
    rows = {"attn_q": s.heads * s.head_dim, "attn_k": s.kv_heads * s.head_dim, "attn_v": s.kv_heads * s.head_dim}
    out: Tensors = {f"{name}.weight": (s.width,) for name in ("attn_norm", "ffn_norm")}
    out |= {f"{name}.weight": (n, s.width) for name, n in rows.items()} | {
        f"{name}.bias": (n,) for name, n in rows.items()
    }
    return out | {"attn_output.weight": (s.width, rows["attn_q"])} | _gated(s.width, s.ffn)


def qwen35(s: Numbers, i: int) -> Tensors:
    """Three gated delta nets, then attention whose q has a gate."""
    out: Tensors = {f"{name}.weight": (s.width,) for name in ("attn_norm", "post_attention_norm")}
    out |= _gated(s.width, s.ffn)
    if (i + 1) % s.keys["full_attention_interval"] == 0:
        return out | _attention(s, 2 * s.heads * s.head_dim)
    state, groups, heads, inner = (
        s.keys[f"ssm.{x}"] for x in ("state_size", "group_count", "time_step_rank", "inner_size")
    )
    wide = 2 * groups * state + inner
    out |= {"attn_qkv.weight": (wide, s.width), "attn_gate.weight": (inner, s.width), "ssm_conv1d.weight": (wide, 4)}
    out |= {f"ssm_{x}.weight": (heads, s.width) for x in ("alpha", "beta")}
    return out | {
        "ssm_dt.bias": (heads,), "ssm_a": (heads,), "ssm_norm.weight": (state,), "ssm_out.weight": (s.width, inner)
    }  # fmt: skip


def latent(s: Numbers, i: int) -> Tensors:
    """DeepSeek's attention over a latent; experts and one that all rows share, after dense layers."""
    rank, n_rot = s.keys["attention.kv_lora_rank"], s.keys["rope.dimension_count"]
    k_dim, v_dim = s.keys["attention.key_length_mla"], s.keys["attention.value_length_mla"]
    out: Tensors = {f"{name}.weight": (s.width,) for name in ("attn_norm", "ffn_norm")}
    q_rank = s.keys["attention.q_lora_rank"]
    out |= {"attn_q_a.weight": (q_rank, s.width), "attn_q_a_norm.weight": (q_rank,)}
    out |= {"attn_q_b.weight": (s.heads * k_dim, q_rank), "attn_output.weight": (s.width, s.heads * v_dim)}
    out |= {"attn_kv_a_mqa.weight": (rank + n_rot, s.width), "attn_kv_a_norm.weight": (rank,)}
    out |= {"attn_k_b.weight": (s.heads, rank, k_dim - n_rot), "attn_v_b.weight": (s.heads, v_dim, rank)}
    if i < s.keys["leading_dense_block_count"]:
        return out | _gated(s.width, s.ffn)
    inner = s.keys["expert_feed_forward_length"]
    out |= {name: (s.experts, *shape) for name, shape in _gated(s.width, inner, "_exps").items()}
    out["ffn_gate_inp.weight"] = (s.experts, s.width)
    return out | _gated(s.width, inner * s.keys["expert_shared_count"], "_shexp")
