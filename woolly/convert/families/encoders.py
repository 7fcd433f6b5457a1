"""Encoders: models that make vectors of texts, or scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.families.gemma import gemma3_keys
from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.keys import transformer_keys
from woolly.convert.ops import TensorOp, picked
from woolly.convert.rope import rope_of

__all__ = ["FAMILIES"]

Keys = dict[str, Any]
_TABLES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
}
_POST_NORMS = {"norm1": "attn_output_norm", "norm2": "layer_output_norm"}


def _base(c: Hyperparameters, norm: str) -> Keys:
    heads, width = c.positive("num_attention_heads", "n_head"), c.positive("hidden_size", "n_embd")
    head = c.integer("head_dim", default=0) or width // heads
    return {
        "block_count": c.n_layers,
        "context_length": c.positive("max_position_embeddings", "n_positions"),
        "embedding_length": width,
        "feed_forward_length": c.positive("intermediate_size", "n_inner"),
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_epsilon": c.number("layer_norm_eps", "norm_eps", "layer_norm_epsilon", default=1e-12),
        "attention.causal": False,
    }


def _first_position(c: Hyperparameters) -> int:
    """RoBERTa's table has rows for padding before that of the first position."""
    return c.integer("pad_token_id", default=1) + 1 if "roberta" in c.text("model_type") else 0


def _bert(c: Hyperparameters, keys: Keys) -> Keys:
    c.refuse("position_embedding_type", unless=(None, "absolute"))
    c.refuse("hidden_act", unless=(None, "gelu"))
    return {"context_length": keys["context_length"] - _first_position(c)}


def _bert_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    if name == "position_embd.weight" and (first := _first_position(c)):
        n = c.positive("max_position_embeddings")
        return (picked(np.arange(first, n), n),)
    return ()


def _modern_bert(c: Hyperparameters, keys: Keys) -> Keys:
    bases = [c.number(f"{x}_rope_theta", default=y) for x, y in (("global", 160000.0), ("local", 10000.0))]
    if c.mapping("rope_parameters"):
        bases = [rope_of(c, kind).number("rope_theta") for kind in ("full_attention", "sliding_attention")]
    activation = c.text("hidden_activation", "gelu")
    return {
        "attention.sliding_window": c.positive("local_attention", default=128),
        "rope.dimension_count": keys["attention.key_length"],
        "rope.freq_base": bases[0],
        "rope.freq_base_swa": bases[1],
        "hidden_activation": None if activation == "gelu" else activation,
    }


def _turned(c: Hyperparameters, keys: Keys) -> Keys:
    base = rope_of(c).number("rope_theta", default=c.number("rotary_emb_base", default=10000.0))
    return {"rope.dimension_count": keys["attention.key_length"], "rope.freq_base": base}


def _both_ways(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.causal": False}


def _gemma(c: Hyperparameters, keys: Keys) -> Keys:
    out = gemma3_keys(c, keys)
    # Readers have one in all files of this kind.
    return out | {"attention.causal": False, "attention.sliding_window_pattern": None, "rope.freq_base_swa": None}


FAMILIES = (
    CheckpointFamily(
        "bert",
        "BertModel RobertaModel XLMRobertaModel CamembertModel RobertaForSequenceClassification"
        " XLMRobertaForSequenceClassification",
        _bert,
        names={
            "attention.self.query": "attn_q",
            "attention.self.key": "attn_k",
            "attention.self.value": "attn_v",
            "attention.output.dense": "attn_output",
            "attention.output.LayerNorm": "attn_output_norm",
            "intermediate.dense": "ffn_up",
            "output.dense": "ffn_down",
            "output.LayerNorm": "layer_output_norm",
        },
        top=_TABLES
        | {
            "embeddings.position_embeddings": "position_embd",
            "classifier.dense": "cls",
            "classifier.out_proj": "cls.output",
        },
        changes=_bert_changes,
        base=_base,
    ),
    CheckpointFamily(
        "modern-bert",
        "ModernBertModel ModernBertForSequenceClassification",
        _modern_bert,
        names={
            "attn.Wqkv": "attn_qkv",
            "attn.Wo": "attn_output",
            "mlp.Wi": "ffn_up",
            "mlp.Wo": "ffn_down",
            "attn_norm": "attn_norm",
            "mlp_norm": "ffn_norm",
        },
        top={
            "embeddings.tok_embeddings": "token_embd",
            "embeddings.norm": "token_embd_norm",
            "final_norm": "output_norm",
            "head.dense": "cls",
            "head.norm": "cls.norm",
            "classifier": "cls.output",
        },
        base=_base,
    ),
    CheckpointFamily(
        "nomic-bert",
        "NomicBertModel",
        _turned,
        names=_POST_NORMS
        | {
            "attn.Wqkv": "attn_qkv",
            "attn.out_proj": "attn_output",
            "mlp.fc11": "ffn_up",
            "mlp.fc12": "ffn_gate",
            "mlp.fc2": "ffn_down",
        },
        top=_TABLES,
        base=_base,
    ),
    CheckpointFamily("eurobert", "EuroBertModel", _both_ways, base=transformer_keys),
    CheckpointFamily("llama-embed", "LlamaBidirectionalModel", _both_ways, pairs=True),
    CheckpointFamily(
        "gemma-embedding",
        "Gemma3TextModel",
        _gemma,
        names={"post_attention_layernorm": "post_attention_norm"},
        top={"dense_2": "dense_2", "dense_3": "dense_3"},
        plus_one=True,
    ),
)
