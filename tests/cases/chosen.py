"""Tiny models in which an index chooses blocks of positions for each KV head, or works beside windows."""

from __future__ import annotations

from tests.cases.tiny import Tiny, block, metadata


def with_blocks(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors, and an index in the layers that have experts."""
    out, head = block(Tiny(**{**vars(tiny), "blocks": None}), i), 16
    if i < tiny.dense:
        return out
    out |= {f"indexer.{x}_proj.weight": (n * head, tiny.width) for x, n in (("q", tiny.n_kv_heads), ("k", 1))}
    return out | {f"indexer.{x}_norm.weight": (head,) for x in "qk"}


def dots3note(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """A latent with gated heads: narrow and with an index, or wide and with a window."""
    keys, width, low = metadata(tiny), tiny.width, 20
    is_wide = keys["attention.sliding_window_pattern"][i]
    end, heads = "_swa" if is_wide else "", keys["attention.head_count"][i]
    rank, k_dim, v_dim = (keys[f"attention.{x}{end}"] for x in ("kv_lora_rank", "key_length_mla", "value_length_mla"))
    usual = block(Tiny(**{**vars(tiny), "blocks": None}), i)
    out = {name: shape for name, shape in usual.items() if not name.startswith("attn_")}
    out |= {"attn_norm.weight": (width,), "attn_output.weight": (width, heads * v_dim)}
    out |= {"attn_q_a.weight": (low, width), "attn_q_a_norm.weight": (low,), "attn_q_b.weight": (heads * k_dim, low)}
    out |= {"attn_kv_a_mqa.weight": (rank + 8, width), "attn_kv_a_norm.weight": (rank,), "attn_k_norm.weight": (8,)}
    out |= {"attn_k_b.weight": (heads, rank, k_dim - 8), "attn_v_b.weight": (heads, v_dim, rank)}
    out |= {"attn_gate.weight": (heads, width)}
    if is_wide:
        return out
    head = keys["attention.indexer.key_length"]
    out |= {"indexer.attn_q_b.weight": (8 * head, low), "indexer.attn_k.weight": (head, width)}
    out |= {"indexer.k_norm.weight": (head,), "indexer.k_norm.bias": (head,)}
    return out | {"indexer.proj.weight": (8, width)}


_EXPERTS = {
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.0,
    "expert_shared_count": 1,
    "leading_dense_block_count": 1,
}
CHOSEN = {
    "dots3note": Tiny(
        "dots3note",
        "dots3note",
        n_layers=4,
        n_rot=8,
        n_kv_heads=1,
        experts=6,
        expert_ffn=24,
        shared=24,
        dense=1,
        tied=False,
        more={"exp_probs_b.bias": 6},
        blocks=dots3note,
        extra={
            **_EXPERTS,
            "attention.head_count": [4, 4, 2, 4],
            "attention.q_lora_rank": 20,
            "attention.kv_lora_rank": 24,
            "attention.key_length": 32,
            "attention.value_length": 24,
            "attention.key_length_mla": 20,
            "attention.value_length_mla": 16,
            "attention.kv_lora_rank_swa": 32,
            "attention.key_length_swa": 40,
            "attention.value_length_swa": 32,
            "attention.key_length_mla_swa": 28,
            "attention.value_length_mla_swa": 12,
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [False, False, True, False],
            "rope.freq_base_swa": 500.0,
            "attention.indexer.head_count": 8,
            "attention.indexer.key_length": 16,
            "attention.indexer.top_k": 8,
            "attention.indexer.types": [True, True, False, True],
        },
    ),
    "minimax-m3": Tiny(
        "minimax-m3",
        "minimax-m3",
        n_layers=3,
        n_rot=8,
        qk_norm=True,
        experts=6,
        expert_ffn=24,
        shared=24,
        dense=1,
        tied=False,
        more={"exp_probs_b.bias": 6},
        blocks=with_blocks,
        extra={
            **_EXPERTS,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 16,
            "attention.indexer.top_k": 3,
            "attention.indexer.block_size": 4,
            "attention.indexer.local_blocks": 1,
        },
    ),
}
