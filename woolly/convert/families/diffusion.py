"""Masked diffusion models."""

from __future__ import annotations

from typing import Any

from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import expert_keys, transformer_keys
from woolly.convert.hyperparameters import Hyperparameters

Keys = dict[str, Any]
_LLADA_MASK, _LLADA_MOE_MASK = 126336, 156895  # masks of the released models, if config.json has none


def _bidirectional(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.causal": False}


def _with_mask(c: Hyperparameters) -> Keys:
    return {"tokenizer.ggml.mask_token_id": c.integer("mask_token_id")}


def _unshifted(c: Hyperparameters, mask: int) -> Keys:
    """Return keys for logits of the row's own position."""
    return {
        "tokenizer.ggml.mask_token_id": c.integer("mask_token_id", default=mask),
        "diffusion.shift_logits": False,
    }


def _rnd1(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.causal": False} | expert_keys(c, normalize=True)


def _llada_moe(c: Hyperparameters, keys: Keys) -> Keys:
    """Return the keys of experts, whose shares are not normalized."""
    inner = c.positive("expert_intermediate_size", default=keys["feed_forward_length"])
    return {"attention.causal": False} | expert_keys(c, normalize=False) | {"expert_feed_forward_length": inner}


def _llada_base(c: Hyperparameters, norm: str) -> Keys:
    """Return the keys of OLMo's names of settings."""
    own = {
        "num_attention_heads": c.positive("n_heads", "num_attention_heads"),
        "intermediate_size": c.positive("mlp_hidden_size", "intermediate_size"),
        "max_position_embeddings": c.positive("max_sequence_length", "max_position_embeddings"),
        "num_key_value_heads": c.integer("n_kv_heads", "num_key_value_heads", default=0) or None,
    }
    return transformer_keys(c.replaced(**{name: value for name, value in own.items() if value is not None}), norm)


def _llada(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("alibi")
    c.reject("attention_layer_norm")
    c.reject("scale_logits")
    c.reject("input_emb_norm")
    c.reject("clip_qkv")
    return {"attention.causal": False}


FAMILIES = (
    CheckpointFamily("dream", "DreamModel", _bidirectional, shared=_with_mask),
    CheckpointFamily(
        "llada",
        "LLaDAModelLM",
        _llada,
        names={
            "attn_norm": "attn_norm",
            "ff_norm": "ffn_norm",
            "attn_out": "attn_output",
            "ff_proj": "ffn_gate",
            "up_proj": "ffn_up",
            "ff_out": "ffn_down",
        },
        top={"ff_out": "output"},
        pairs=True,
        base=_llada_base,
        defaults={"rms_norm_eps": 1e-5},
        shared=lambda c: _unshifted(c, _LLADA_MASK),
        settings={
            "activation_type": ("silu",),
            "block_type": ("llama",),
            "layer_norm_type": ("rms",),
            "rope": (True,),
            "rope_full_precision": (True, False),
            "block_group_size": (1,),
            "flash_attention": (True, False),
            "layer_norm_with_affine": (True,),
            "bias_for_layer_norm": (False,),
            "multi_query_attention": (False,),
            "attention_layer_norm_with_affine": (True, False),
            "mlp_ratio": lambda value, c: c.peek("mlp_hidden_size") is not None,
            "weight_tying": lambda value, c: True,
            "embedding_size": lambda value, c: True,
            "init_device": lambda value, c: True,
            "precision": lambda value, c: True,
        },
    ),
    CheckpointFamily(
        "llada-moe",
        "LLaDAMoEModel LLaDAMoEModelLM",
        _llada_moe,
        settings={"norm_topk_prob": (False,)},
        shared=lambda c: _unshifted(c, _LLADA_MOE_MASK),
    ),
    CheckpointFamily("rnd1", "RND1", _rnd1, shared=_with_mask),
)
