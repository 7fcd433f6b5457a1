"""RWKV: recurrent layers with token shift."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.tensor_ops import SQUEEZED, SWAPPED, TensorOp, reshaped, scaled

Keys = dict[str, Any]
_CONTEXT = 1 << 20  # recurrent states have no maximum context
_SIXTH = {
    "pre_ln": "^token_embd_norm",
    "ln1": "attn_norm",
    "ln2": "attn_norm_2",
    "attention.ln_x": "time_mix_ln",
    "attention.time_maa_x": "time_mix_lerp_x.weight",
    **{f"attention.time_maa_{x}": f"time_mix_lerp_fused.weight#{i}" for i, x in enumerate("wkvrg")},
    "attention.time_maa_w1": "time_mix_w1.weight",
    "attention.time_maa_w2": "time_mix_w2.weight",
    "attention.time_decay": "time_mix_decay.weight",
    "attention.time_decay_w1": "time_mix_decay_w1.weight",
    "attention.time_decay_w2": "time_mix_decay_w2.weight",
    "attention.time_faaaa": "time_mix_first.weight",
    **{f"attention.{x}": f"time_mix_{x}" for x in ("receptance", "key", "value", "gate", "output")},
    **{f"feed_forward.{x}": f"channel_mix_{x}" for x in ("receptance", "key", "value")},
    "feed_forward.time_maa_k": "channel_mix_lerp_k.weight",
    "feed_forward.time_maa_r": "channel_mix_lerp_r.weight",
}
_GATED = {
    **{name.replace("attention.", "self_attn."): ours for name, ours in _SIXTH.items() if "attention.time_" in name},
    **{
        f"self_attn.{x}_proj": f"time_mix_{y}"
        for x, y in zip("qkvo", ("receptance", "key", "value", "output"), strict=True)
    },
    "self_attn.gate": "time_mix_gate",
}
_TURNED = ("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight")


def _mixing(part: str, projections: str) -> dict[str, str]:
    """Return the names of RWKV-7's token shift in one part of a layer, with its four matrices."""
    r, k, v, o = projections.split()
    out = {f"{part}.{x}": f"time_mix_{y}" for x, y in ((r, "receptance"), (k, "key"), (v, "value"), (o, "output"))}
    out |= {f"{part}.x_{x}": f"time_mix_lerp_fused.weight#{i}" for i, x in enumerate("rwkvag")}
    out |= {f"{part}.{x}": f"time_mix_{x}.weight" for x in ("k_k", "k_a", "r_k")}
    for x in "wavg":
        out |= {f"{part}.{x}_lora.lora.0": f"time_mix_{x}1", f"{part}.{x}_lora.lora.2": f"time_mix_{x}2"}
        out[f"{part}.{x}_lora.lora.2.bias"] = f"time_mix_{x}0.weight"
        out |= {f"{part}.{x}{i}": f"time_mix_{x}{i}.weight" for i in range(3)}
    return out


def _state(c: Hyperparameters, norm: str) -> Keys:
    width = c.positive("hidden_size")
    epsilon = "layer_norm_rms_epsilon" if norm == "rms" else "layer_norm_epsilon"
    return {
        "block_count": c.n_layers,
        "context_length": _CONTEXT,
        "embedding_length": width,
        "feed_forward_length": c.integer("intermediate_size", default=0) or _inner(c, width),
        f"attention.{epsilon}": c.number("layer_norm_epsilon", "norm_eps", "rms_norm_eps", default=1e-5),
        "attention.head_count": 0,  # other programs require this key
        "wkv.head_size": c.positive("head_size", "head_dim", default=64),
    }


def _inner(c: Hyperparameters, width: int) -> int:
    return width * 7 // 2 // 32 * 32 if c.text("model_type") == "rwkv6" else 4 * width


def _sixth(c: Hyperparameters, keys: Keys) -> Keys:
    return {"rescale_every_n_layers": c.integer("rescale_every", default=0), "token_shift_count": 2}


def _sixth_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Transpose matrices, and scale output weights by 1/2 per `rescale_every` layers, as hidden states are scaled."""
    if name in _TURNED:
        return (SWAPPED,)
    if name == "time_mix_decay.weight":
        return (SQUEEZED,)
    every = c.integer("rescale_every", default=0)
    if every and block >= every and name in ("time_mix_output.weight", "channel_mix_value.weight"):
        return (scaled(np.float32(0.5 ** (block // every))),)
    return ()


def _seventh_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return (reshaped(-1),) if name == "time_mix_r_k.weight" else ()


def _gated(c: Hyperparameters, keys: Keys) -> Keys:
    return {
        "wkv.head_size": c.positive("hidden_size") // c.positive("num_attention_heads"),
        "attention.head_count_kv": c.positive("num_key_value_heads"),
        "token_shift_count": 1,
    }


def _gated_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Reorder token shift from receptance, key, value, decay, gate to RWKV-6's order, which starts with decay."""
    if name not in ("time_mix_w1.weight", "time_mix_w2.weight"):
        return _sixth_changes(c, name, block)
    return (SWAPPED, TensorOp(lambda x: x.reshape(5, -1, x.shape[-1])[[3, 1, 2, 0, 4]].reshape(x.shape)))


def _distilled(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("wkv_version", unless=(None, 7))
    return {"token_shift_count": 1}


def _distilled_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Transpose the small matrices, and drop axes of length 1 from vectors."""
    stem = name.removeprefix("time_mix_").removesuffix(".weight")
    if stem in {f"{x}{i}" for x in "wavg" for i in (1, 2)}:
        return (SWAPPED,)
    return (reshaped(-1),) if stem in ("w0", "a0", "v0", "k_k", "k_a", "r_k") else ()


FAMILIES = (
    CheckpointFamily(
        "rwkv6",
        "Rwkv6ForCausalLM",
        _sixth,
        names=_SIXTH,
        top={"ln_out": "output_norm", "head": "output"},
        changes=_sixth_changes,
        norm="layer",
        base=_state,
    ),
    CheckpointFamily("rwkv6qwen2", "RWKV6Qwen2ForCausalLM", _gated, names=_GATED, changes=_gated_changes, base=_state),
    CheckpointFamily(
        "rwkv7",
        "RWKV7ForCausalLM Rwkv7ForCausalLM",
        lambda c, keys: {"token_shift_count": 2},
        names=_mixing("attn", "r_proj k_proj v_proj o_proj")
        | {
            "pre_norm": "^token_embd_norm",
            "attn_norm": "attn_norm",
            "ffn_norm": "attn_norm_2",
            "attn.g_norm": "time_mix_ln",
            "ffn.x_k": "channel_mix_lerp_k.weight",
            "ffn.key": "channel_mix_key",
            "ffn.value": "channel_mix_value",
        },
        changes=_seventh_changes,
        norm="layer",
        base=_state,
    ),
    CheckpointFamily(
        "arwkv7",
        "RwkvHybridForCausalLM",
        _distilled,
        names=_mixing("self_attn.time_mixer", "receptance key value output")
        | {"self_attn.time_mixer.ln_x": "time_mix_ln"},
        changes=_distilled_changes,
        base=_state,
    ),
)
