"""Gemma decoders."""

from __future__ import annotations

from typing import Any

from woolly.convert.config_ledger import GELU_TANH, activation
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import expert_keys, layer_kinds, window_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of
from woolly.convert.tensor_ops import TensorOp, reshaped

Keys = dict[str, Any]
_NORMS = {"post_attention_layernorm": "post_attention_norm"}
_LOCAL = {"rope_local_base_freq": 10000.0}
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
}


def _local_base(c: Hyperparameters) -> float:
    """Return the rope base of sliding-window layers."""
    if any(isinstance(one, dict) for one in c.mapping("rope_parameters").values()):
        return rope_of(c, "sliding_attention").number("rope_theta", default=10000.0)
    return c.number("rope_local_base_freq", default=10000.0)


def _softcaps(c: Hyperparameters) -> Keys:
    return {
        name: 0.0 if c.is_null(name) else c.number(name, default=0.0) or None  # a missing key means the class default
        for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }


def gemma2_keys(c: Hyperparameters, keys: Keys) -> Keys:
    """Return windows, softcaps and the attention scale."""
    scalar = c.number("query_pre_attn_scalar", default=float(keys["attention.key_length"]))
    scale = None if scalar == keys["attention.key_length"] else scalar**-0.5
    return _softcaps(c) | window_keys(c, 2) | {"attention.scale": scale}


def gemma3_keys(c: Hyperparameters, keys: Keys) -> Keys:
    """Return windows, softcaps and the rope base of sliding-window layers."""
    out = gemma2_keys(c, keys)
    if not c.mapping("rope_parameters") and c.get("rope_theta") is None:
        out["rope.freq_base"] = 1e6
    return out | window_keys(c, 6) | {"rope.freq_base_swa": _local_base(c)}


def _gemma3n(c: Hyperparameters, keys: Keys) -> Keys:
    return (
        {
            "embedding_length_per_layer_input": c.positive("hidden_size_per_layer_input"),
            "attention.shared_kv_layers": c.integer("num_kv_shared_layers", default=0),
            "altup.num_inputs": c.positive("altup_num_inputs", default=4),
            "altup.active_idx": c.integer("altup_active_idx", default=0),
            "rope.freq_base_swa": _local_base(c),
        }
        | _softcaps(c)
        | window_keys(c, 5)
    )


def _gemma4(c: Hyperparameters, keys: Keys) -> Keys:
    """Return separate head sizes for global layers, which may have wider heads and fewer KV heads."""
    kinds, local = layer_kinds(c), keys["attention.key_length"]
    per_layer = c.mapping("per_layer_config")
    kv = [keys["attention.head_count_kv"]] * c.n_layers
    wide = c.integer("global_head_dim", default=local)
    for i, kind in enumerate(kinds):
        own = c.inner(per_layer.get(str(i)) or {})
        if kind == "full_attention":
            wide = own.integer("head_dim", default=wide)
            few = c.integer("num_global_key_value_heads", default=kv[i]) if c.flag("attention_k_eq_v") else kv[i]
            kv[i] = own.integer("num_key_value_heads", default=few)
    return (
        {
            "attention.head_count_kv": kv,
            "attention.key_length": wide,
            "attention.value_length": wide,
            "attention.key_length_swa": local,
            "attention.value_length_swa": local,
            "rope.dimension_count": wide,
            "rope.dimension_count_swa": local,
            "rope.freq_base_swa": _local_base(c),
            "embedding_length_per_layer_input": c.integer("hidden_size_per_layer_input", default=0),
            "attention.shared_kv_layers": c.integer("num_kv_shared_layers", default=0),
        }
        | {"final_logit_softcapping": c.number("final_logit_softcapping", default=0.0)}
        | window_keys(c)
        | expert_keys(c)
    )


def _gemma3n_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    return (reshaped(-1),) if name == "altup_correct_scale.weight" else ()


_ACT = activation(GELU_TANH)


def _is_usual_sparsity(value: Any, c: Hyperparameters) -> bool:
    """True if exactly the first ten layers have an activation sparsity of 0.95, as the architecture assumes."""
    listed = value if isinstance(value, list) else [value]
    return listed == [0.95 if i < 10 else 0.0 for i in range(len(listed))]


FAMILIES = (
    CheckpointFamily("gemma", "GemmaForCausalLM", plus_one=True, settings=_ACT),
    CheckpointFamily("gemma2", "Gemma2ForCausalLM", gemma2_keys, names=_NORMS, plus_one=True, settings=_ACT),
    CheckpointFamily(
        "gemma3",
        "Gemma3ForCausalLM Gemma3ForConditionalGeneration",
        gemma3_keys,
        names=_NORMS,
        plus_one=True,
        defaults=_GEMMA3,
        settings=_ACT,
    ),
    CheckpointFamily(
        "gemma3n",
        "Gemma3nForCausalLM Gemma3nForConditionalGeneration",
        _gemma3n,
        names=_NORMS
        | {
            "altup.correct_output_scale": "altup_correct_scale.weight",
            "altup.correction_coefs": "altup_correct_coef",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.modality_router": "altup_router",
            "altup.router_norm": "altup_router_norm",
            "laurel.linear_left": "laurel_l",
            "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
        },
        top={f"altup_projections.{i}": f"altup_proj#{i}" for i in range(16)}
        | {f"altup_unembed_projections.{i}": f"altup_unembd_proj#{i}" for i in range(16)},
        changes=_gemma3n_changes,
        settings=_ACT | {"altup_correct_scale": (True,), "activation_sparsity_pattern": _is_usual_sparsity},
    ),
    CheckpointFamily(
        "gemma4",
        "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
        _gemma4,
        names=_NORMS
        | {
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
            "post_feedforward_layernorm_1": "post_ffw_norm_1",
            "post_feedforward_layernorm_2": "post_ffw_norm_2",
            "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
            "layer_scalar": "layer_output_scale.weight",
            "router.proj": "ffn_gate_inp",
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
            "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        },
        settings=_ACT,
    ),
)
