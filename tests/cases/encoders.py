"""Tiny random encoders, and decoders that are read as encoders: each row shows what its family has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.cases.tiny import Tiny, block

POOLINGS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
BERT_BIASES = "attn_output attn_output_norm layer_output_norm ffn_up ffn_down"
POST_NORMS = "attn_output_norm layer_output_norm"
SEPARATOR = 265  # "<|im_end|>" of the vocabulary


def table(name: str, rows: int, columns: int, spread: float = 0.3) -> dict[str, np.ndarray]:
    """A tensor outside blocks."""
    seed = np.frombuffer(name.encode(), np.uint8).sum()
    return {f"{name}.weight": spread * np.random.RandomState(seed).standard_normal((rows, columns))}


def vector(name: str, n: int = 64, around: float = 0.0) -> dict[str, np.ndarray]:
    seed = np.frombuffer(name.encode(), np.uint8).sum()
    return {name: around + 0.1 * np.random.RandomState(seed).standard_normal(n)}


EMBEDDING_NORM = vector("token_embd_norm.weight", around=1.0) | vector("token_embd_norm.bias")


def encoder(name: str, architecture: str, pooling: str, *, root: dict[str, Any], **more: Any) -> Tiny:
    extra = {"attention.causal": False, "pooling_type": POOLINGS[pooling]} | more.pop("extra", {})
    more = {"layer_norm": True, "n_kv_heads": 4, "last_norm": False, "context": 64} | more
    types = len(root["token_types.weight"]) if "token_types.weight" in root else 0
    keys = {"tokenizer.ggml.seperator_token_id": SEPARATOR, "tokenizer.ggml.token_type_count": types}
    return Tiny(name, architecture, root=root, extra=extra, shared_metadata=keys, **more)


def bert(name: str, pooling: str, *, n_types: int = 2, root: dict[str, Any] | None = None, **more: Any) -> Tiny:
    types = table("token_types", n_types, 64) if n_types else {}
    tables = EMBEDDING_NORM | table("position_embd", 64, 64) | types | (root or {})
    more = {
        "norms": "attn_output_norm layer_output_norm",
        "biases": BERT_BIASES,
        "qkv_bias": True,
        "mlp": "plain",
    } | more
    return encoder(name, "bert", pooling, root=tables, **more)


HEAD = table("cls", 64, 64) | vector("cls.bias") | table("cls.output", 3, 64) | vector("cls.output.bias", 3)
LABELS = {"classifier.output_labels": ["bad", "fair", "good"]}
MODERN = {
    "norms": "attn_norm ffn_norm",
    "fused_qkv": True,
    "mlp": "fused",
    "n_layers": 4,
    "last_norm": True,
    "blocks": lambda tiny, i: {
        name: shape for name, shape in block(replace(tiny, blocks=None), i).items() if i or name != "attn_norm.weight"
    },
    "rope_base": 160000.0,
}
MODERN_KEYS = {"attention.sliding_window": 8, "rope.freq_base_swa": 10000.0}
SANDWICH = "attn_norm post_attention_norm ffn_norm post_ffw_norm"
DENSE = {"dense_2_feat_in": 64, "dense_2_feat_out": 96, "dense_3_feat_in": 96, "dense_3_feat_out": 64}
DECODER = {"layer_norm": False, "last_norm": True, "n_kv_heads": 2}
MOE_BLOCK = {"ffn_gate_inp.weight": (4, 64), "ffn_up_exps.weight": (4, 96, 64), "ffn_down_exps.weight": (4, 64, 96)}


def nomic_moe(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Each second layer has experts in place of its network."""
    shapes = block(replace(tiny, blocks=None, experts=0), i)
    if i % 2 == 0:
        return shapes
    return {name: shape for name, shape in shapes.items() if not name.startswith("ffn_")} | MOE_BLOCK


def t5(gated: bool) -> dict[str, np.ndarray]:
    """All tensors of two layers: a prefix of their own, and the table of distances in the first alone."""
    out = vector("enc.output_norm.weight", around=1.0) | table("enc.blk.0.attn_rel_b", 32, 4, 1.0)
    for i in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
            out |= table(f"enc.blk.{i}.{name}", 64, 64, 0.125)
        for name in ("ffn_gate", "ffn_up")[not gated :]:
            out |= table(f"enc.blk.{i}.{name}", 96, 64, 0.125)
        out |= table(f"enc.blk.{i}.ffn_down", 64, 96, 0.1)
        for name in ("attn_norm", "ffn_norm"):
            out |= vector(f"enc.blk.{i}.{name}.weight", around=1.0)
    return out


ENCODERS = {
    tiny.name: tiny
    for tiny in (
        bert("bert-mean", "mean"),
        bert("bert-cls", "cls", n_heads=8, n_kv_heads=8, head_dim=8),
        bert("bert-none", "none"),
        bert("roberta-rank", "rank", n_types=1, root=HEAD, extra=LABELS),
        bert("bert-rank", "rank", root=HEAD | table("cls.output", 1, 64) | vector("cls.output.bias", 1)),
        encoder(
            "modern-bert",
            "modern-bert",
            "cls",
            root={name: values for name, values in EMBEDDING_NORM.items() if name.endswith("weight")},
            extra=MODERN_KEYS,
            **MODERN,
        ),
        encoder(
            "modern-bert-rank",
            "modern-bert",
            "rank",
            root={name: values for name, values in EMBEDDING_NORM.items() if name.endswith("weight")}
            | {name: values for name, values in HEAD.items() if name != "cls.bias"}
            | vector("cls.norm.weight", around=1.0),
            extra=MODERN_KEYS | LABELS | {"hidden_activation": "silu"},
            **MODERN,
        ),
        encoder(
            "nomic-bert",
            "nomic-bert",
            "mean",
            root=EMBEDDING_NORM | table("token_types", 2, 64),
            norms=POST_NORMS,
            biases="attn_output_norm layer_output_norm",
            fused_qkv=True,
            rope_base=1000.0,
        ),
        encoder(
            "nomic-bert-moe",
            "nomic-bert-moe",
            "mean",
            root=EMBEDDING_NORM | table("token_types", 1, 64),
            norms=POST_NORMS,
            biases=BERT_BIASES,
            fused_qkv=True,
            qkv_bias=True,
            mlp="plain",
            experts=4,
            blocks=nomic_moe,
            extra={"moe_every_n_layers": 2},
        ),
        encoder(
            "gemma-embedding",
            "gemma-embedding",
            "mean",
            root=table("dense_2", 96, 64) | table("dense_3", 64, 96),
            n_layers=7,
            qk_norm=True,
            norms=SANDWICH,
            rope_base=1e6,
            extra={"attention.sliding_window": 8, **DENSE},
            **DECODER,
        ),
        encoder("qwen3-last", "qwen3", "last", root={}, qk_norm=True, extra={"attention.causal": True}, **DECODER),
        encoder(
            "qwen3-rank",
            "qwen3",
            "rank",
            root=table("cls.output", 2, 64),
            qk_norm=True,
            extra={"attention.causal": True, "classifier.output_labels": ["yes", "no"]},
            **DECODER,
        ),
        encoder("llama-embed", "llama-embed", "mean", root={}, **DECODER),
        encoder("eurobert", "eurobert", "mean", root={}, **DECODER),
        encoder(
            "jina-bert-v3",
            "jina-bert-v3",
            "mean",
            root=EMBEDDING_NORM | table("token_types", 1, 64),
            norms=POST_NORMS,
            biases=BERT_BIASES,
            qkv_bias=True,
            mlp="plain",
            rope_base=20000.0,
        ),
        encoder(
            "jina-bert-v2",
            "jina-bert-v2",
            "mean",
            root=vector("token_embd_norm.weight", 96, 1.0)
            | vector("token_embd_norm.bias", 96)
            | table("token_types", 2, 96),
            n_heads=6,
            n_kv_heads=6,
            head_dim=16,
            width=96,
            norms=POST_NORMS,
            biases="attn_output attn_output_norm layer_output_norm ffn_down",
            qkv_bias=True,
        ),
        *(
            encoder(
                name,
                "t5encoder",
                pooling,
                root=t5(name == "t5-gated"),
                blocks=lambda tiny, i: {},
                layer_norm=False,
                context=256,
                extra={"attention.relative_buckets_count": 32},
            )
            for name, pooling in (("t5-gated", "none"), ("t5", "mean"))
        ),
        encoder(
            "neo-bert",
            "neo-bert",
            "cls",
            root=vector("enc.output_norm.weight", around=1.0),
            fused_qkv=True,
            mlp="fused",
            layer_norm=False,
        ),
    )
}

# The longest is longer than T5's single distances.
TEXTS = {n: np.random.RandomState(n).randint(0, 264, n).tolist() for n in (1, 7, 40)}
PAIR = [*TEXTS[7], SEPARATOR, *TEXTS[40][:20], SEPARATOR]
