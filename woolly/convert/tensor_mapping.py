"""Common names of checkpoint tensors, and their GGUF names.

A tensor in a block is looked up by its path within the block, without `.weight` or `.bias`; then by the end of the
path, without words that only name a part of the block. A value that ends with `.weight`, `.bias`, `.scale` or `.` is a
complete GGUF name. `a|b` splits a tensor into equal parts, `a*b` copies it to both names, `a@0` is the first of several
tensors that are concatenated, and `a#0` the first of several that are stacked. `^a` is a name outside blocks, in which
`{i}` is the block number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Prefixes of layer and table names, longest first.
PREFIXES = (
    "model.language_model.model.",
    "language_model.model.",
    "model.language_model.",
    "model.transformer.",
    "model.text_model.",
    "language_model.",
    "transformer.",
    "gpt_neox.",
    "rwkv.",
    "backbone.",
    "roberta.",
    "bert.",
    "model.",
)
LAYER = re.compile(r"(?:encoder\.|layers\.)?(?:layers|h|blocks?|layer|decoder_layer|transformer_encoder)\.(\d+)\.(.+)")
# Parts of other modalities, and constants that GGUF files do not contain.
LEFT_OUT = re.compile(
    r"(^|\.)(visual|vision|vision_tower|vision_model|vision_encoder|vision_embed_tokens|audio_tower|audio_model|"
    r"multi_modal_projector|mm_projector|embed_vision|embed_audio|vit_large_projector|aligner|sound_encoder|audio_encoder|patch_merge_mlp|mlp_AR|"
    r"vit|vqmodel|sam_model|projector\.layers)\.|(^|\.)(image_newline|view_seperator)$"
    r"|rotary_emb\.inv_freq$|\.masked_bias$|\.att(n|ention)\.bias$|(slope_rate|diagonal_decay|query_decay|key_decay)$|\.embed_positions\."
    r"|relative_pe\.slopes$|(^|\.)pooler\.dense\.|embeddings\.position_ids$|^cls\.(predictions|seq_relationship)\."
    r"|mlp\.experts\.bias$|\.num_batches_tracked$"
)

TOP: Mapping[str, str] = {
    "embed_tokens": "token_embd",
    "embeddings": "token_embd",
    "tok_embeddings": "token_embd",
    "wte": "token_embd",
    "lm_head": "output",
    "output": "output",
    "norm": "output_norm",
    "norm_f": "output_norm",
    "ln_f": "output_norm",
    "final_layernorm": "output_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}

# Words of a path that do not affect the meaning of its end.
_PLACES = {
    "self_attn", "attn", "attention", "self_attention", "mlp", "feed_forward", "block_sparse_moe", "mamba", "mixer",
    "linear_attn", "moe", "ffn",
}  # fmt: skip

BLOCK: Mapping[str, str] = {
    # norms
    "input_layernorm": "attn_norm",
    "attention_layernorm": "attn_norm",
    "attention_norm": "attn_norm",
    "operator_norm": "attn_norm",
    "norm": "attn_norm",
    "ln_1": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "feedforward_layernorm": "ffn_norm",
    "pre_mlp_layernorm": "ffn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "ffn_norm": "ffn_norm",
    "ln_2": "ffn_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mamba.norm": "ssm_norm",
    "mixer.norm": "ssm_norm",
    "linear_attn.norm": "ssm_norm",
    # attention
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "wo": "attn_output",
    "qkv_proj": "attn_qkv",
    "self_attn.out_proj": "attn_output",
    "attention.out_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_layernorm": "attn_q_norm",
    "k_layernorm": "attn_k_norm",
    "query_layernorm": "attn_q_norm",
    "key_layernorm": "attn_k_norm",
    "attn_sub_norm": "attn_sub_norm",
    "sinks": "attn_sinks.weight",
    "attention_sink_bias": "attn_sinks.weight",
    "q_a_proj": "attn_q_a",
    "q_a_layernorm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    # feed-forward networks
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "gate_up_proj": "ffn_up",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
    "c_fc": "ffn_up",
    "c_fc_0": "ffn_gate",
    "c_fc_1": "ffn_up",
    "c_proj": "ffn_down",
    "ffn_sub_norm": "ffn_sub_norm",
    # experts
    "gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "router.gate": "ffn_gate_inp",
    "router.layer": "ffn_gate_inp",
    "gate.wg": "ffn_gate_inp",
    "gate.e_score_correction_bias": "exp_probs_b.bias",
    "moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "e_score_correction_bias": "exp_probs_b.bias",
    "expert_bias": "exp_probs_b.bias",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "experts.gate_up_proj": "ffn_gate_exps.weight|ffn_up_exps.weight",
    "experts.gate_proj": "ffn_gate_exps.weight",
    "experts.up_proj": "ffn_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "input_linear": "ffn_gate_exps|ffn_up_exps",
    "output_linear": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_gate_shexp|ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    # recurrent layers
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "out_proj": "ssm_out",
    "dt_layernorm": "ssm_dt_norm",
    "b_layernorm": "ssm_b_norm",
    "c_layernorm": "ssm_c_norm",
    "A_log": "ssm_a.",
    "D": "ssm_d.",
    "dt_bias": "ssm_dt.bias",
    "conv.conv": "shortconv.conv.weight",
    "conv.in_proj": "shortconv.in_proj.weight",
    "conv.out_proj": "shortconv.out_proj.weight",
    # draft (MTP) blocks
    "eh_proj": "nextn.eh_proj.weight",
    "enorm": "nextn.enorm.weight",
    "hnorm": "nextn.hnorm.weight",
    "embed_tokens": "nextn.embed_tokens.weight",
    "shared_head.head": "nextn.shared_head_head.weight",
    "shared_head.norm": "nextn.shared_head_norm.weight",
}
for _word in ("shared_expert", "shared_experts", "shared_mlp"):
    BLOCK = {**BLOCK, **{f"{_word}.{x}_proj": f"ffn_{x}_shexp" for x in ("gate", "up", "down")}}

# Qwen's names of tensors around the draft blocks.
MTP: Mapping[str, str] = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
    "embed_tokens": "nextn.embed_tokens",
}


def find_name(path: str, own: Mapping[str, str]) -> str | None:
    """Return the GGUF name of a path within a block, or None if unknown. Names in `own` take precedence."""
    tails = [path]
    first, _, rest = path.partition(".")
    if rest and first in _PLACES:
        tails.append(rest)
    for table in (own, BLOCK):
        for tail in tails:
            if tail in table:
                return table[tail]
    return None
