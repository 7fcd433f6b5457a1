"""Encoders: embedding models and rerankers."""

from __future__ import annotations

from typing import Any

import numpy as np

from woolly.convert.families.gemma import gemma3_keys
from woolly.convert.family import CheckpointFamily
from woolly.convert.gguf_keys import transformer_keys
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.rope import rope_of
from woolly.convert.tensor_ops import SWAPPED, TensorOp, picked, reshaped

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
    """Return how many rows RoBERTa's position table has before the first position."""
    return c.integer("pad_token_id", default=1) + 1 if "roberta" in c.text("model_type") else 0


def _bert(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("position_embedding_type", unless=(None, "absolute"))
    c.reject("hidden_act", unless=(None, "gelu"))
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


def _nomic(c: Hyperparameters, keys: Keys) -> Keys:
    """Add experts to every second layer in version 2."""
    out = _turned(c, keys)
    if not c.has("moe_every_n_layers"):
        return out
    return out | {
        "moe_every_n_layers": c.positive("moe_every_n_layers"),
        "expert_count": c.positive("num_experts"),
        "expert_used_count": c.positive("moe_top_k"),
    }


def _nomic_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split the fused rows of all experts, and transpose the down projection."""
    if not name.endswith("_exps.weight"):
        return ()
    apart = reshaped(c.positive("num_experts"), c.positive("n_inner", "intermediate_size"), -1)
    return (apart, SWAPPED) if "down" in name else (apart,)


def _jina2(c: Hyperparameters, keys: Keys) -> Keys:
    c.reject("position_embedding_type", unless=(None, "alibi"))
    c.reject("feed_forward_type", unless=(None, "geglu"))
    return {}


def _neo_base(c: Hyperparameters, norm: str) -> Keys:
    """Return an MLP width of two thirds of the configured width."""
    keys = _base(c.with_defaults({"max_position_embeddings": c.get("max_length")}), norm)
    epsilon = c.number("norm_eps", default=1e-6)
    keys.pop("attention.layer_norm_epsilon")
    return keys | {
        "attention.layer_norm_rms_epsilon": epsilon,
        "feed_forward_length": 2 * c.positive("intermediate_size") // 3,
        "rope.dimension_count": keys["attention.key_length"],
        "rope.freq_base": 10000.0,
        "pooling_type": 2,
    }


def _neo_changes(c: Hyperparameters, name: str, block: int) -> tuple[TensorOp, ...]:
    """Split QKV, which is interleaved by head."""
    if name != "attn_qkv.weight":
        return ()
    heads, width = c.positive("num_attention_heads"), c.positive("hidden_size")
    rows = np.arange(3 * width).reshape(heads, 3, -1).swapaxes(0, 1)
    return (picked(rows.reshape(-1), rows.size),)


def _t5_base(c: Hyperparameters, norm: str) -> Keys:
    c.reject("is_gated_act", unless=(None, False, "gated" in c.text("feed_forward_proj", "relu")))
    c.reject("feed_forward_proj", unless=(None, "relu", "gated-gelu"))
    c.reject("relative_attention_max_distance", unless=(None, 128))
    heads, head = c.positive("num_heads"), c.positive("d_kv")
    return {
        "block_count": c.n_layers,
        "context_length": c.positive("n_positions", default=512),
        "embedding_length": c.positive("d_model"),
        "feed_forward_length": c.positive("d_ff"),
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": c.number("layer_norm_epsilon", default=1e-6),
        "attention.relative_buckets_count": c.positive("relative_attention_num_buckets", default=32),
        "attention.causal": False,
    }


_T5 = {
    **{f"layer.0.SelfAttention.{x}": f"^enc.blk.{{i}}.attn_{x}" for x in "qkvo"},
    "layer.0.SelfAttention.relative_attention_bias": "^enc.blk.{i}.attn_rel_b",
    "layer.0.layer_norm": "^enc.blk.{i}.attn_norm",
    "layer.1.layer_norm": "^enc.blk.{i}.ffn_norm",
    "layer.1.DenseReluDense.wi": "^enc.blk.{i}.ffn_up",
    "layer.1.DenseReluDense.wi_0": "^enc.blk.{i}.ffn_gate",
    "layer.1.DenseReluDense.wi_1": "^enc.blk.{i}.ffn_up",
    "layer.1.DenseReluDense.wo": "^enc.blk.{i}.ffn_down",
}
_T5_TABLES = {
    **dict.fromkeys(("shared", "encoder.embed_tokens", "decoder.embed_tokens"), "token_embd"),
    "encoder.final_layer_norm": "enc.output_norm",
    "decoder.final_layer_norm": "dec.output_norm",
}
# In decoder layers, cross-attention is between self-attention and the MLP.
_T5_DECODER = {
    **{f"decoder.{name}".replace("r.1.", "r.2."): to.replace("enc", "dec") for name, to in _T5.items()},
    **{f"decoder.layer.1.EncDecAttention.{x}": f"^dec.blk.{{i}}.cross_attn_{x}" for x in "qkvo"},
    "decoder.layer.1.EncDecAttention.relative_attention_bias": "^dec.blk.{i}.cross_attn_rel_b",
    "decoder.layer.1.layer_norm": "^dec.blk.{i}.cross_attn_norm",
}


def _t5(c: Hyperparameters, keys: Keys) -> Keys:
    return {
        "attention.causal": None,
        "decoder_block_count": c.positive("num_decoder_layers", default=keys["block_count"]),
        "decoder_start_token_id": c.integer("decoder_start_token_id", default=0),
    }


_BERT = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def _both_ways(c: Hyperparameters, keys: Keys) -> Keys:
    return {"attention.causal": False}


def _gemma(c: Hyperparameters, keys: Keys) -> Keys:
    out = gemma3_keys(c, keys)
    # 1 in all files of this architecture.
    return out | {"attention.causal": False, "attention.sliding_window_pattern": None, "rope.freq_base_swa": None}


FAMILIES = (
    CheckpointFamily(
        "bert",
        "BertModel RobertaModel XLMRobertaModel CamembertModel RobertaForSequenceClassification"
        " XLMRobertaForSequenceClassification",
        _bert,
        names=_BERT,
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
        _nomic,
        names=_POST_NORMS
        | {
            "attn.Wqkv": "attn_qkv",
            "attn.out_proj": "attn_output",
            "mlp.fc11": "ffn_up",
            "mlp.fc12": "ffn_gate",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
            "mlp.experts.mlp.w1": "ffn_up_exps.weight",
            "mlp.experts.mlp.w2": "ffn_down_exps.weight",
        },
        top=_TABLES,
        changes=_nomic_changes,
        base=_base,
        rename=lambda c: "nomic-bert-moe" if c.has("moe_every_n_layers") else "nomic-bert",
    ),
    CheckpointFamily(
        "jina-bert-v2",
        "JinaBertModel JinaBertForMaskedLM",
        _jina2,
        names=_BERT
        | {
            "mlp.gated_layers": "ffn_gate|ffn_up",
            "mlp.wo": "ffn_down",
            "mlp.layernorm": "layer_output_norm",
        },
        top=_TABLES,
        base=_base,
    ),
    CheckpointFamily(
        "jina-bert-v3",
        "JinaEmbeddingsV3Model",
        _turned,
        names={
            "post_attention_layernorm": "attn_output_norm",
            "post_mlp_layernorm": "layer_output_norm",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
        },
        top=_TABLES,
        base=_base,
    ),
    CheckpointFamily(
        "neo-bert",
        "NeoBERT NeoBERTLMHead",
        names={
            "qkv": "attn_qkv",
            "wo": "attn_output",
            "attention_norm": "attn_norm",
            "ffn.w12": "ffn_up",
            "ffn.w3": "ffn_down",
        },
        top={"encoder": "token_embd", "layer_norm": "enc.output_norm"},
        changes=_neo_changes,
        base=_neo_base,
    ),
    CheckpointFamily(
        "t5encoder",
        "T5EncoderModel",
        names=_T5,
        top=_T5_TABLES,
        base=_t5_base,
    ),
    CheckpointFamily(
        "t5",
        "T5ForConditionalGeneration T5WithLMHeadModel MT5ForConditionalGeneration UMT5ForConditionalGeneration",
        _t5,
        names=_T5 | _T5_DECODER,
        top=_T5_TABLES,
        base=_t5_base,
        defaults={"tie_word_embeddings": True},
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
