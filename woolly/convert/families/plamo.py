"""PLaMo: three generations, which only share layer names."""

from __future__ import annotations

from typing import Any

from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.tensor_ops import MINUS_EXP, SQUEEZED, TensorOp, columns_of_heads, raised, rows_of_heads

Keys = dict[str, Any]
# Constants that PLaMo 2 and 3 add to stored norm weights.
_PLAMO_NORMS = {"post_attention_norm": 0.2, "post_ffw_norm": 5**-1.5}
_PLAMO2 = {
    "pre_mixer_norm": "attn_norm",
    "post_mixer_norm": "post_attention_norm.",
    "pre_mlp_norm": "ffn_norm",
    "post_mlp_norm": "post_ffw_norm.",
    "mixer.qkv_proj": "attn_qkv",
    "mixer.o_proj": "attn_output",
    "mixer.q_weight": "attn_q_norm.weight",
    "mixer.k_weight": "attn_k_norm.weight",
    "mixer.bcdt_proj": "ssm_x",
    "mixer.dt_norm_weight": "ssm_dt_norm.",
    "mixer.B_norm_weight": "ssm_b_norm.",
    "mixer.C_norm_weight": "ssm_c_norm.",
}


def _plamo_share(c: Hyperparameters) -> int:
    return c.positive("n_shared_head", default=8)


def _plamo(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.head_count_kv": max(1, keys["attention.head_count"] // _plamo_share(c))}


def _plamo_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Ungroup the q heads of each KV head."""
    head = c.positive("hidden_size") // c.positive("num_attention_heads")
    if name == "attn_q.weight":
        return (rows_of_heads(_plamo_share(c), head),)
    return (columns_of_heads(_plamo_share(c), head),) if name == "attn_output.weight" else ()


def _plamo2(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("mamba_enabled", unless=(None, True))
    head, step, n = c.positive("hidden_size_per_head", default=128), c.positive("mamba_step", default=2), c.n_layers
    scans = [i != n - 1 if n <= step // 2 else i % step != step // 2 for i in range(n)]
    heads = c.positive("mamba_num_heads", default=64)
    return {
        "attention.head_count": [0 if scan else keys["attention.head_count"] for scan in scans],
        "attention.head_count_kv": [0 if scan else c.positive("num_key_value_heads") for scan in scans],
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "ssm.conv_kernel": c.positive("mamba_d_conv", default=4),
        "ssm.state_size": c.positive("mamba_d_state", default=64),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * head,
        "ssm.group_count": 0,
    }


def _plamo_norms(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if name in _PLAMO_NORMS:
        return (raised(_PLAMO_NORMS[name]),)
    if name == "ssm_a":
        return (MINUS_EXP,)
    if name == "ssm_conv1d.weight":
        return (SQUEEZED,)
    return ()


def _plamo2_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    raises = name in ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")
    return (raised(1.0),) if raises else _plamo_norms(c, name, block)


def _plamo3(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("rope_scaling_factor", unless=(None, 1, 1.0))
    window = c.integer("window_size", "sliding_window", default=0)
    return {
        "attention.sliding_window": window or None,
        "attention.sliding_window_pattern": c.positive("sliding_window_pattern", default=8) if window else None,
        "rope.freq_base_swa": c.number("rope_local_theta", default=10000.0),
    }


FAMILIES = (
    CheckpointFamily(
        "plamo",
        "PlamoForCausalLM",
        _plamo,
        changes=_plamo_changes,
        defaults={"max_position_embeddings": 4096},
    ),
    CheckpointFamily("plamo2", "Plamo2ForCausalLM PLaMo2ForCausalLM", _plamo2, names=_PLAMO2, changes=_plamo2_changes),
    CheckpointFamily(
        "plamo3",
        "Plamo3ForCausalLM PLaMo3ForCausalLM",
        _plamo3,
        names=_PLAMO2,
        changes=_plamo_norms,
        plus_one=True,
    ),
)
