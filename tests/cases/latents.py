"""Tiny models whose attention keeps a latent: K and V from it by absorbed matrices, or expanded for each head."""

from __future__ import annotations

from typing import Any

from tests.cases.tiny import YARN, Tiny, block, metadata

RANK, N_ROT, STRAIGHT, V_DIM = 24, 8, 12, 16


def latent(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The attention of a layer, and the rest as other models have it."""
    width, heads, keys = tiny.width, tiny.n_heads, metadata(tiny)
    usual = {k: v for k, v in block(Tiny(**{**vars(tiny), "blocks": None}), i).items() if not k.startswith("attn_")}
    q, q_rank = heads * (STRAIGHT + N_ROT), keys["attention.q_lora_rank"]
    out: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,), "attn_output.weight": (width, heads * V_DIM)}
    if q_rank:
        out |= {"attn_q_a.weight": (q_rank, width), "attn_q_a_norm.weight": (q_rank,), "attn_q_b.weight": (q, q_rank)}
    else:
        out["attn_q.weight"] = (q, width)
    out |= {"attn_kv_a_mqa.weight": (RANK + N_ROT, width), "attn_kv_a_norm.weight": (RANK,)}
    if "attention.key_length_mla" in keys:
        out |= {"attn_k_b.weight": (heads, RANK, STRAIGHT), "attn_v_b.weight": (heads, V_DIM, RANK)}
    else:
        out["attn_kv_b.weight"] = (heads * (STRAIGHT + V_DIM), RANK)
    return out | usual


def indexed(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """The usual tensors, and those of an index over positions, unless the layer takes the choice before."""
    out, keys, heads = latent(tiny, i), metadata(tiny), 8
    head = keys["attention.indexer.key_length"]
    if not (*keys.get("attention.indexer.types", ()), *(True,) * tiny.n_layers)[i]:
        return out
    out |= {"indexer.attn_q_b.weight": (heads * head, 20), "indexer.attn_k.weight": (head, tiny.width)}
    out |= {"indexer.k_norm.weight": (head,), "indexer.k_norm.bias": (head,)}
    return out | {"indexer.proj.weight": (heads, tiny.width)}


def kimi(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """A delta net whose tensors have the axes of 1 that the converter leaves, or attention over the latent."""
    keys, out = metadata(tiny), latent(tiny, i)
    if keys["attention.head_count_kv"][i]:
        return out
    width, heads, head = tiny.width, tiny.n_heads, keys["kda.head_dim"]
    inner = heads * head
    out = {name: shape for name, shape in out.items() if not name.startswith("attn_") or name == "attn_norm.weight"}
    out |= {f"attn_{x}.weight": (inner, width) for x in "qkv"} | {"attn_output.weight": (width, inner)}
    out |= {f"ssm_conv1d_{x}.weight": (1, inner, 1, keys["ssm.conv_kernel"]) for x in "qkv"}
    out |= {f"ssm_{x}_a.weight": (head, width) for x in "fg"} | {f"ssm_{x}_b.weight": (inner, head) for x in "fg"}
    out |= {"ssm_beta.weight": (heads, width), "ssm_a": (1, 1, heads, 1), "ssm_dt.bias": (inner,)}
    return out | {"ssm_norm.weight": (head,)}


def ling(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Kimi's with a gate of each head, and without what is narrow in a delta net."""
    width, heads, out = tiny.width, tiny.n_heads, kimi(tiny, i)
    if "ssm_a" not in out:
        return out | {"attn_gate.weight": (heads, width)}
    inner = heads * metadata(tiny)["kda.head_dim"]
    out = {name: shape for name, shape in out.items() if not name.startswith(("ssm_f_", "ssm_g_"))}
    return out | {"ssm_a": (heads, 1)} | {f"ssm_{x}_a.weight": (inner, width) for x in "fg"}


def row(name: str, architecture: str = "deepseek2", *, absorbed: bool = True, q_rank: int = 20, **more: Any) -> Tiny:
    keys = {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.kv_lora_rank": RANK,
        "attention.q_lora_rank": q_rank,
        "attention.key_length": RANK + N_ROT if absorbed else STRAIGHT + N_ROT,
        "attention.value_length": RANK if absorbed else V_DIM,
        "expert_shared_count": 1,
    }
    if absorbed:
        keys |= {"attention.key_length_mla": STRAIGHT + N_ROT, "attention.value_length_mla": V_DIM}
    return Tiny(
        name,
        architecture,
        n_kv_heads=1 if absorbed else 4,
        n_rot=N_ROT,
        tied=False,
        experts=8,
        expert_ffn=24,
        shared=24,
        blocks=more.pop("blocks", latent),
        extra=keys | more.pop("extra", {}),
        **more,
    )


INDEX = {"attention.indexer.head_count": 8, "attention.indexer.key_length": 16, "attention.indexer.top_k": 8}
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
LATENTS = {
    tiny.name: tiny
    for tiny in (
        row(
            "deepseek-v3",
            n_layers=3,
            dense=1,
            more={"exp_probs_b.bias": 8},
            extra=YARN
            | SIGMOID
            | {
                "leading_dense_block_count": 1,
                "expert_group_count": 4,
                "expert_group_used_count": 2,
                "rope.scaling.yarn_log_multiplier": 0.0707,
            },
        ),
        row(
            "deepseek-v32",
            "deepseek32",
            n_layers=3,
            dense=1,
            more={"exp_probs_b.bias": 8},
            blocks=indexed,
            extra=YARN
            | SIGMOID
            | INDEX
            | {
                "leading_dense_block_count": 1,
                "expert_group_count": 4,
                "expert_group_used_count": 2,
                "rope.scaling.yarn_log_multiplier": 0.1,
            },
        ),
        row(
            "glm-dsa",
            "glm-dsa",
            n_layers=4,
            dense=1,
            more={"exp_probs_b.bias": 8, "nextn.enorm.weight": 64},
            blocks=indexed,
            extra=INDEX
            | {
                "attention.indexer.types": [True, False, True],
                "leading_dense_block_count": 1,
                "nextn_predict_layers": 1,
                "expert_weights_norm": True,
                "expert_weights_scale": 2.5,
            },
        ),
        row("deepseek-v2-lite", absorbed=False, q_rank=0, dense=1, extra={"leading_dense_block_count": 1}),
        row(
            "glm-flash",
            n_layers=3,
            dense=1,
            more={"exp_probs_b.bias": 8, "nextn.enorm.weight": 64},
            extra=SIGMOID | {"leading_dense_block_count": 1, "nextn_predict_layers": 1},
        ),
        row(
            "kimi-linear",
            "kimi-linear",
            n_layers=4,
            q_rank=0,
            dense=1,
            more={"exp_probs_b.bias": 8},
            blocks=kimi,
            extra=SIGMOID
            | {
                "attention.head_count_kv": [0, 0, 1, 0],
                "leading_dense_block_count": 1,
                "ssm.conv_kernel": 4,
                "kda.head_dim": 32,
            },
        ),
        row(
            "bailingmoe3",
            "bailingmoe3",
            n_layers=4,
            q_rank=0,
            dense=1,
            more={"exp_probs_b.bias": 8},
            blocks=ling,
            factors={"ssm_a": -1.0},
            extra=SIGMOID
            | {
                "attention.head_count_kv": [0, 0, 1, 0],
                "leading_dense_block_count": 1,
                "expert_group_count": 4,
                "expert_group_used_count": 2,
                "ssm.conv_kernel": 4,
                "kda.head_dim": 32,
                "kda.safe_gate": True,
                "kda.gate_lower_bound": -5.0,
            },
        ),
        row(
            "mistral4",
            "mistral4",
            extra=YARN
            | {
                "expert_gating_func": 1,
                "expert_weights_norm": True,
                "attention.temperature_scale": 0.1,
                "attention.temperature_length": 16,
                "rope.scaling.yarn_log_multiplier": 0.1,
            },
        ),
    )
}
