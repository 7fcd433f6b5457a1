"""Check that every setting of config.json is converted, irrelevant, or equal to what the architecture computes anyway.

Without this check, an unread setting would be dropped silently and the converted model would compute something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from woolly.convert.hyperparameters import Hyperparameters
from woolly.errors import ModelError

# Allowed values of a setting, or a predicate of the value and the configuration.
Allowed = tuple[Any, ...] | Callable[[Any, Hyperparameters], bool]

SILU = ("silu", "swish")
GELU = ("gelu",)  # exact form
GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_tanh")
RELU2 = ("relu2",)

# Settings of training, text generation and implementation. Sizes and biases are also listed, because the tensors
# determine them, and unknown or missing tensors raise errors.
_HARMLESS = re.compile(
    r"_.*|.*_token_ids?|.*_token_index|.*_dropout(_prob|_rate|_p)?|.*_pdrop|dropout|(embedding_)?initializer_.*|.*_init(_.*)?|"
    r"init_.*|.*_std|summary_.*|.*_jitter_(noise|eps)|.*aux_loss.*|z_loss.*|.*_loss_coef|(use|output)_.*(cache|states|"
    r"attentions|logits)|.*(vision|image|video|audio|projector|speech|mm_|multimodal).*|.*use_bias|.*_?bias|no_bias|"
    r".*chunk_size|.*_kernels?|time_step_.*|.*fp32.*|.*torch_dtype|.*dtype|.*vocab_size.*|unsloth_.*|transformers.*|"
    r"flash_attn.*|use_flash.*|attn_implementation|fused_.*|use_fused.*|id2label|label2id|num_labels|problem_type"
)
_HARMLESS_NAMES = frozenset(
    """
    architectures model_type auto_map custom_pipelines quantization_config quantization compression_config
    task_specific_params tokenizer_class tie_word_embeddings use_return_dict return_dict torchscript pruned_heads
    finetuning_task prefix is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size
    chunk_size_feed_forward gradient_checkpointing block_size ep_size seq_aux num_logits_to_keep logits_to_keep
    embedding_fraction learned_pos_emb norm_type slow_but_exact reorder_and_upcast_attn pretraining_tp
    tensor_parallel_degree sequence_parallel recompute dim_model_base_init mamba_ssm_cache_dtype residual_in_fp32
    rescale_prenorm_residual use_associative_scan use_mambapy use_mamba_kernels mamba_kernel
    moe_shared_expert_overlap max_length min_length do_sample temperature top_k top_p num_beams repetition_penalty
    no_repeat_ngram_size language languages license tags mlp_layer_types mlp_only_layers moe_layers
    first_k_dense_replace num_dense_layers moe_layer_start_index moe_layer_end_index moe_layer_interval
    moe_layer_freq expert_layer_offset expert_layer_period enable_moe_block moe_num_shared_experts n_shared_experts
    num_shared_expert num_shared_experts shared_expert_intermediate_size shared_intermediate_size
    moe_shared_expert_intermediate_size qk_head_dim qk_layernorm use_qk_norm use_expert_bias use_double_wide_mlp
    laurel_rank block_ffn_dim_multiplier block_multiple_of intermediate_size ffn_hidden_size expand mamba_expand
    mamba_d_head mamba_d_ssm mamba_rms_norm linear_num_heads num_nextn_predict_layers mtp_layers_block_type
    multi_query num_kv_heads num_key_value_heads num_ln_in_parallel_attn time_step_rank n_groups
    original_max_position_embeddings max_sequence_length seq_length max_seq_len seq_len model_max_length n_positions
    n_ctx max_position_embeddings topk_method eod_token_id sep_token_id hidden_size rms_norm_eps layer_norm_eps
    layer_norm_epsilon norm_epsilon norm_eps altup_coef_clip mixer_rms_eps num_experts num_local_experts
    n_routed_experts decoder_sparse_step bos_token eos_token pad_token unk_token version model_version ffn_bias
    head_dim rope_dim num_hidden_layers
    """.split()  # noqa: SIM905  (one word per setting)
)

# Infinity in JSON, as Python and transformers write it.
_INFINITIES = (math.inf, "Infinity", {"__float__": "Infinity"})

# Settings that change the output but have no GGUF key, with the values that all architectures compute. A family may
# allow other values.
_USUAL: Mapping[str, Allowed] = {
    "hidden_act": SILU,
    "hidden_activation": SILU,
    "activation_function": SILU,
    "activation": SILU,
    "mamba_hidden_act": SILU,
    "mlp_hidden_act": SILU,
    "use_sliding_window": (False,),
    "sliding_window": lambda value, c: (
        not value or c.peek("use_sliding_window") is False or value >= (c.peek("max_position_embeddings") or 0)
    ),
    "max_window_layers": lambda _, c: not c.peek("use_sliding_window"),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "rope_interleave": (True,),
    "mamba_norm_before_gate": (False,),
    "use_parallel_residual": (False,),
    "norm_topk_prob": (True,),
    "scoring_func": ("softmax",),
    "clip_qkv": (),
    "routed_scaling_factor": (1.0,),
    "time_step_limit": lambda value, _: value in [[0.0, one] for one in _INFINITIES],
    "attn_temperature_tuning": (True, 4),
    "swiglu_alpha": (1.702,),
    "swiglu_limit": (7.0,),
    "moe_norm_min": (1e-12,),
    "prefix_dense_sliding_window_pattern": (1,),
}
# Duplicates of other settings.
_REPEATED = {
    "sliding_window_pattern": "layer_types",
    "_sliding_window_pattern": "layer_types",
    "global_attn_every_n_layers": "layer_types",
    "no_rope_layer_interval": "no_rope_layers",
}
# Settings of optional parts.
_EXPERTS = re.compile(r".*expert.*|moe_.*|norm_topk_prob|topk_group|n_group|routed_scaling_factor|route_scale")


def activation(names: tuple[str, ...]) -> dict[str, Allowed]:
    """Return the settings for this MLP activation."""
    return dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function", "activation", "mlp_hidden_act"), names
    )


def check_settings(
    config: Hyperparameters, allowed: Mapping[str, Allowed], keys: Mapping[str, Any], ignored: Collection[str] = ()
) -> None:
    """Raise ModelError for a setting of config.json that a GGUF file with these `keys` would drop.

    `allowed` has the values that the family computes where they differ from the common values.
    """
    _check_ropes(config, keys)
    for name, value in config.unread().items():
        if name in ignored or (name not in allowed and _is_without_effect(name, config, keys)):
            continue
        usual = allowed.get(name, _USUAL.get(name))
        if usual is None:
            # An unknown feature must be off, because it might change the output.
            if not value and not isinstance(value, str):
                continue
            raise ModelError(
                f"{config.where}: {name:.60} is {value!r:.60}, a setting unknown to woolly convert; if it does not"
                f" affect the model's logits, add --ignore-setting {name:.60}"
            )
        if not (usual(value, config) if callable(usual) else value in usual):
            raise ModelError(
                f"{config.where}: {name} is {value!r:.60}, which GGUF files of this architecture do not support"
            )


def _check_ropes(config: Hyperparameters, keys: Mapping[str, Any]) -> None:
    """Raise ModelError for a rope of some layers that differs from the others', unless the file has keys for it."""
    given = config.peek("rope_parameters")
    ropes = [one for one in given.values() if isinstance(one, dict)] if isinstance(given, dict) else []
    for name, key in (("rope_theta", "rope.freq_base_swa"), ("partial_rotary_factor", "rope.dimension_count_swa")):
        values = {str(float(x)) for one in ropes if isinstance(x := one.get(name), (int, float))}
        is_used = name == "rope_theta" or "attention.kv_lora_rank" not in keys  # MLA has widths of its own
        if len(values) > 1 and key not in keys and is_used:
            raise ModelError(
                f"{config.where}: {name} in rope_parameters is {' and '.join(sorted(values))} in different"
                " layers, which GGUF files of this architecture do not support"
            )


def _is_without_effect(name: str, config: Hyperparameters, keys: Mapping[str, Any]) -> bool:
    if name in _USUAL:
        return "expert_count" not in keys and _EXPERTS.fullmatch(name) is not None
    if name in _REPEATED:
        return config.peek(_REPEATED[name]) is not None
    if name in _HARMLESS_NAMES or _HARMLESS.fullmatch(name):
        return True
    if not keys.get("attention.head_count") and re.fullmatch(r"num_(attention|key_value)_heads|attention_.*", name):
        return True
    if name in ("rope_parameters", "rope_scaling", "rope_theta"):
        return "rope.dimension_count" not in keys
    return name == "topk_group" or ("expert_count" not in keys and _EXPERTS.fullmatch(name) is not None)
