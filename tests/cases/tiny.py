"""Tiny random models of every architecture, written with the project's own writer.

Weights come from NumPy's frozen legacy generator, so that the same spec gives the same file for ever:
the goldens in tests/goldens depend on it.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from woolly.gguf import GGMLType, GGUFWriter

N_VOCAB = 320


@dataclass(frozen=True)
class Tiny:
    name: str
    architecture: str
    width: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    context: int = 512
    rope_base: float = 10000.0
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    llama3_rope: bool = False
    type: GGMLType = GGMLType.F32
    extra: dict[str, Any] = field(default_factory=dict)


GRANITE = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "attention.scale": 0.0625,
    "logit_scale": 8.0,
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}

TINY = {
    tiny.name: tiny
    for tiny in (
        Tiny("llama", "llama", tied=False),
        Tiny("llama-tied-bias", "llama", qkv_bias=True, n_kv_heads=4),
        Tiny("llama3-rope", "llama", rope_base=500000.0, llama3_rope=True, head_dim=32),
        Tiny("llama-linear", "llama", extra={"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}),
        Tiny("llama-yarn", "llama", extra=YARN),
        Tiny("granite", "granite", extra=GRANITE),
        Tiny("qwen2", "qwen2", qkv_bias=True, n_kv_heads=1),
        Tiny("qwen3", "qwen3", qk_norm=True, head_dim=32, tied=False),
    )
}


def write_tiny(tiny: Tiny, path: Path) -> Path:
    """Writes the model with a byte-level vocabulary and gives the path back."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", tiny.architecture)
    writer.add("general.name", tiny.name)
    for key, value in {
        "block_count": tiny.n_layers,
        "context_length": tiny.context,
        "embedding_length": tiny.width,
        "feed_forward_length": tiny.ffn,
        "attention.head_count": tiny.n_heads,
        "attention.head_count_kv": tiny.n_kv_heads,
        "attention.key_length": tiny.head_dim,
        "attention.value_length": tiny.head_dim,
        "rope.dimension_count": tiny.head_dim,
        "rope.freq_base": tiny.rope_base,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": N_VOCAB,
        **tiny.extra,
    }.items():
        writer.add(f"{tiny.architecture}.{key}", value)
    for key, value in byte_vocabulary().items():
        writer.add(key, value)
    for name, array in tensors(tiny).items():
        writer.add_tensor(name, array, tiny.type if array.ndim == 2 else GGMLType.F32)
    writer.write()
    return path


def tensors(tiny: Tiny) -> dict[str, np.ndarray]:
    """Every weight as f32; matrices as (rows, columns)."""
    random = np.random.RandomState(zlib.crc32(tiny.name.encode()))

    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def near(value, n):
        return (value + 0.1 * random.standard_normal(n)).astype(np.float32)

    q_width, kv_width = tiny.n_heads * tiny.head_dim, tiny.n_kv_heads * tiny.head_dim
    out = {"token_embd.weight": matrix(N_VOCAB, tiny.width)}
    for i in range(tiny.n_layers):
        block = {
            "attn_norm.weight": near(1, tiny.width),
            "attn_q.weight": matrix(q_width, tiny.width),
            "attn_k.weight": matrix(kv_width, tiny.width),
            "attn_v.weight": matrix(kv_width, tiny.width),
            "attn_output.weight": matrix(tiny.width, q_width),
            "ffn_norm.weight": near(1, tiny.width),
            "ffn_gate.weight": matrix(tiny.ffn, tiny.width),
            "ffn_up.weight": matrix(tiny.ffn, tiny.width),
            "ffn_down.weight": matrix(tiny.width, tiny.ffn),
        }
        if tiny.qkv_bias:
            block |= {f"attn_{x}.bias": near(0, q_width if x == "q" else kv_width) for x in "qkv"}
        if tiny.qk_norm:
            block |= {f"attn_{x}_norm.weight": near(1, tiny.head_dim) for x in "qk"}
        out |= {f"blk.{i}.{name}": array for name, array in block.items()}
    out["output_norm.weight"] = near(1, tiny.width)
    if not tiny.tied:
        out["output.weight"] = matrix(N_VOCAB, tiny.width)
    if tiny.llama3_rope:
        out["rope_freqs.weight"] = llama3_divisors(tiny)
    return out


# Llama 3.1's published scaling, over a short original context so that few tokens show it.
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_divisors(tiny: Tiny) -> np.ndarray:
    """The divisors that a converter writes for Llama 3's scaling: long waves by the factor, short ones not."""
    frequencies = tiny.rope_base ** (-np.arange(0, tiny.head_dim, 2) / tiny.head_dim)
    wavelengths = 2 * math.pi / frequencies
    original, low, high = (
        LLAMA3["original_max_position_embeddings"],
        LLAMA3["low_freq_factor"],
        LLAMA3["high_freq_factor"],
    )
    smooth = (original / wavelengths - low) / (high - low)
    blended = 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)
    long, short = wavelengths > original / low, wavelengths < original / high
    return np.where(long, LLAMA3["factor"], np.where(short, 1.0, blended)).astype(np.float32)


def byte_vocabulary() -> dict[str, Any]:
    """A byte-level vocabulary of 256 bytes, some merges, and control tokens, padded to N_VOCAB."""
    letters = [chr(b) if _printable(b) else chr(256 + n) for b, n in _byte_order()]
    merges = ["t h", "th e", "Ġ the", "i n", "e r", "a n", "an d", "Ġ and"]
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges), "<|im_start|>", "<|im_end|>"]
    types = [1] * (len(tokens) - 2) + [3, 3]
    while len(tokens) < N_VOCAB:
        tokens.append(f"<|pad_{len(tokens)}|>")
        types.append(3)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.asarray(types, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def _printable(b: int) -> bool:
    return 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255


def _byte_order() -> list[tuple[int, int]]:
    """Every byte with its rank among the bytes that have no printable character of their own."""
    rank, out = 0, []
    for b in range(256):
        out.append((b, rank))
        rank += not _printable(b)
    return out
