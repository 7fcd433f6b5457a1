"""Decoders with unusual skeletons: layers that run several times, norms without weights, gated windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.config_ledger import GELU, activation
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import expert_keys, window_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of
from woolly.convert.tensor_ops import Array, TensorOp, reshaped, scaled

Keys = dict[str, Any]
_EPSILON = float(np.finfo(np.float32).eps)  # of norms in torch without an epsilon


def _nanbeige(c: Hyperparameters, keys: Keys) -> Keys:
    return {
        "num_loops": c.positive("num_loops", default=1),
        "skip_loop_final_norm": c.flag("skip_loop_final_norm"),
    }


def _talkie(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the norms' epsilon, which is a constant of the class."""
    return {"attention.layer_norm_rms_epsilon": _EPSILON}


def _talkie_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Negate the second half of each q and k head: the class rotates in the other direction."""
    if name == "attn_q_norm.weight":
        return (reshaped(-1, 1),)
    if name not in ("attn_q.weight", "attn_k.weight"):
        return ()
    half = np.ones(c.positive("head_dim") // 2, np.float32)
    signs = np.tile(np.concatenate([half, -half]), c.positive("num_attention_heads"))
    return (scaled(signs[:, None]),)


def _spark(c: Hyperparameters, keys: Keys) -> Keys:
    """Return keys for sliding-window layers, which have separate rope."""
    local, head = rope_of(c, "sliding_attention"), keys["attention.key_length"]
    return window_keys(c) | {
        "rope.freq_base_swa": local.number("rope_theta", default=10000.0),
        "rope.dimension_count_swa": int(head * local.number("partial_rotary_factor", default=1.0)),
    }


def _maple(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the keys of experts and windows. The gate limit is a constant of the class."""
    c.reject("num_shared_experts")
    c.reject("nope_on_global_attention", unless=(True,))
    return window_keys(c) | expert_keys(c, normalize=True) | {"swiglu_clamp_exp": [7.0] * c.n_layers}


def _chameleon(c: Hyperparameters, keys: Keys) -> Keys:
    return {"swin_norm": c.flag("swin_norm")}


def _chameleon_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Reorder the norms of heads like the rows of q and k."""
    if not name.startswith(("attn_q_norm.", "attn_k_norm.")):
        return ()
    return (TensorOp(_paired_columns, rows=False),)


def _paired_columns(x: Array) -> Array:
    out: Array = x.reshape(x.shape[0], 2, -1).swapaxes(1, 2).reshape(x.shape)
    return out


_TALKIE = {
    "attn.attn_query": "attn_q",
    "attn.attn_key": "attn_k",
    "attn.attn_value": "attn_v",
    "attn.attn_resid": "attn_output",
    "attn.head_gain.head_g": "attn_q_norm.weight",
    "attn_gain.a_g": "attn_output.scale",
    "mlp.mlp_gate": "ffn_gate",
    "mlp.mlp_linear": "ffn_up",
    "mlp.mlp_resid": "ffn_down",
    "mlp_gain.a_g": "ffn_down.scale",
    "embed_skip.a_g": "layer_output_scale.weight",
}

FAMILIES = (
    CheckpointFamily(
        "chameleon",
        "ChameleonForConditionalGeneration ChameleonForCausalLM",
        _chameleon,
        changes=_chameleon_changes,
        pairs=True,
        settings={"vq_config": lambda value, c: True, "vocabulary_map": lambda value, c: True},
    ),
    CheckpointFamily(
        "maple",
        "MapleForCausalLM",
        _maple,
        defaults={"intermediate_size": 0, "partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    ),
    CheckpointFamily("nanbeige", "NanbeigeForCausalLM", _nanbeige, pairs=True, settings={"loop_loss_weights": ([],)}),
    CheckpointFamily(
        "spark2_5",
        "Spark2_5ForCausalLM",
        _spark,
        names={"self_attn.q_k_v_proj": "attn_qkv", "self_attn.g_proj": "attn_gate"},
        settings=activation(GELU) | {"headwise_attn_output_gate": (True,), "gate_attn_act_mode": ("sigmoid",)},
    ),
    CheckpointFamily(
        "talkie",
        "TalkieForCausalLM",
        _talkie,
        names=_TALKIE,
        top={"embed": "token_embd", "lm_head": "output.weight"},
        changes=_talkie_changes,
        values={"lm_head_gain.w_g": "logit_scale"},
        defaults={"rms_norm_eps": _EPSILON},
    ),
)
