"""Tiny random models of every architecture, written with the project's own writer.

Weights come from NumPy's frozen legacy generator, so that the same spec gives the same file for ever:
the goldens in tests/goldens depend on it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
import os
import shutil
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType

N_VOCAB = 320
# Models of this process by the ids of their specs: more than there are architectures.
_KEPT: dict[tuple[Any, ...], tuple[Tiny, Path]] = {}
_MAX_CACHED = 256
_NUMBERS = itertools.count()
ADDED = ("position_embd", "token_types")  # tables that converters leave in f32


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
    qk_norm: bool | str = False  # per head; "whole": over all heads at once, "heads": per head with own weights
    llama3_rope: bool = False
    type: GGMLType = GGMLType.F32
    extra: dict[str, Any] = field(default_factory=dict)
    n_rot: int = 0  # 0: all of a head
    layer_norm: bool = False
    last_norm: bool = True
    norms: str = "attn_norm ffn_norm"  # of each block
    fused_qkv: bool = False
    mlp: str = "gated"  # "fused": gate and up in one matrix, "plain": no gate
    biases: str = ""  # of further matrices and norms of each block
    experts: int = 0  # of which 2 are used
    expert_ffn: int = 0  # 0: ffn, and no key of its own
    shared: int = 0  # width of the expert of all rows
    dense: int = 0  # layers before the first with experts
    more: dict[str, Any] = field(default_factory=dict)  # shapes of further tensors of each block
    blocks: Any = None  # function of the row and the layer that gives a block's shapes, if they follow no rule
    factors: dict[str, float] = field(default_factory=dict)  # of tensors of each block
    shared_metadata: dict[str, Any] = field(default_factory=dict)  # keys without the architecture's name
    root: dict[str, Any] = field(default_factory=dict)  # values of further tensors outside blocks
    norm_name: str = "output_norm"


GRANITE = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "attention.scale": 0.0625,
    "logit_scale": 8.0,
}
XD_ROPE = {"rope.scaling.alpha": 4.0, "rope.dimension_sections": [2, 2, 2, 2]}
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
    """Writes the model with a byte-level vocabulary and gives the path back.

    Many files of tests go through all architectures: a file that is kept is copied in a tenth of the time.
    """
    key = (id(tiny), tensors, byte_vocabulary)  # some tests replace one of these functions
    _, kept = _KEPT.pop(key, (tiny, None))
    if kept is None:
        kept = _folder() / f"{next(_NUMBERS)}.gguf"
        _write(tiny, kept)
    _KEPT[key] = tiny, kept  # what was used last is last; the spec stays, so that its id is that of no other
    if len(_KEPT) > _MAX_CACHED:
        _KEPT.pop(next(iter(_KEPT)))[1].unlink()
    path.unlink(missing_ok=True)  # an open file of that name stays what it was
    shutil.copyfile(kept, path)
    return path


@functools.cache
def _folder() -> Path:
    """Temporary folder for the models of this process, deleted at exit."""
    folder = tempfile.mkdtemp(prefix="woolly-tiny-")
    process = os.getpid()
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)


def _write(tiny: Tiny, path: Path) -> None:
    writer = GGUFWriter(path)
    writer.add("general.architecture", tiny.architecture)
    writer.add("general.name", tiny.name)
    for key, value in metadata(tiny).items():
        writer.add(f"{tiny.architecture}.{key}", value)
    for key, value in (byte_vocabulary() | tiny.shared_metadata).items():
        writer.add(key, value)
    for name, array in tensors(tiny).items():
        is_matrix = array.ndim >= 2 and "norm" not in name and not name.startswith(ADDED)
        if array.dtype == np.int32:
            writer.add_raw_tensor(name, GGMLType.I32, array.shape, array.tobytes())
        else:
            writer.add_tensor(name, array, tiny.type if is_matrix else GGMLType.F32)
    writer.write()


def metadata(tiny: Tiny) -> dict[str, Any]:
    """Keys below the architecture's name."""
    out = {
        "block_count": tiny.n_layers,
        "context_length": tiny.context,
        "embedding_length": tiny.width,
        "feed_forward_length": tiny.ffn,
        "attention.head_count": tiny.n_heads,
        "attention.head_count_kv": tiny.n_kv_heads,
        "attention.key_length": tiny.head_dim,
        "attention.value_length": tiny.head_dim,
        "rope.dimension_count": tiny.n_rot or tiny.head_dim,
        "rope.freq_base": tiny.rope_base,
        f"attention.layer_norm_{'' if tiny.layer_norm else 'rms_'}epsilon": 1e-5,
        "vocab_size": N_VOCAB,
    }
    if tiny.experts:
        out |= {"expert_count": tiny.experts, "expert_used_count": 2}
        out |= {"expert_feed_forward_length": tiny.expert_ffn} if tiny.expert_ffn else {}
        out |= {"expert_shared_feed_forward_length": tiny.shared} if tiny.shared else {}
    return out | tiny.extra


def tensors(tiny: Tiny) -> dict[str, np.ndarray]:
    """Every weight as f32; matrices as (rows, columns)."""
    random = np.random.RandomState(zlib.crc32(tiny.name.encode()))

    def made(name: str, *shape: int) -> np.ndarray:
        """Norms and scales near 1, sinks and biases near 0, matrices that keep the size of what they meet.

        Rates of recurrent layers are negative: what is kept fades.
        """
        if "tid2eid" in name:  # experts of each token
            return np.stack([random.permutation(tiny.experts)[: shape[1]] for _ in range(shape[0])]).astype(np.int32)
        if name == "ssm_a":
            return -(0.1 + np.abs(random.standard_normal(shape))).astype(np.float32)
        if len(shape) == 1 or "norm" in name or name.endswith(".bias"):
            spread = 1.0 if "sinks" in name else 0.3 if "probs" in name else 0.1
            around = 0.0 if name.endswith(".bias") or "sinks" in name or "inp_shexp" in name else 1.0
            return (around + spread * random.standard_normal(shape)).astype(np.float32)
        return (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)

    out = {"token_embd.weight": made("token_embd.weight", N_VOCAB, tiny.width)}
    for i in range(tiny.n_layers):
        arrays = {name: made(name, *shape) for name, shape in block(tiny, i).items()}
        for name, array in arrays.items():
            out[f"blk.{i}.{name}"] = array * array.dtype.type(tiny.factors.get(name, 1))
    if tiny.last_norm:
        out[f"{tiny.norm_name}.weight"] = made("output_norm.weight", tiny.width)
    if "output_norm" in tiny.biases.split():
        out["output_norm.bias"] = made("output_norm.bias", tiny.width)
    if not tiny.tied:
        out["output.weight"] = made("output.weight", N_VOCAB, tiny.width)
    if tiny.llama3_rope:
        out["rope_freqs.weight"] = llama3_divisors(tiny)
    return out | {name: np.asarray(values, np.float32) for name, values in tiny.root.items()}


def block(tiny: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of one layer."""
    if tiny.blocks is not None:
        return tiny.blocks(tiny, i)
    heads, kv_heads, ffn = (
        value[i] if isinstance(value := metadata(tiny)[key], list) else value
        for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    )
    width, q_width, kv_width = tiny.width, heads * tiny.head_dim, kv_heads * tiny.head_dim
    attention = {"q": q_width, "k": kv_width, "v": kv_width}
    if tiny.fused_qkv:
        attention = {"qkv": sum(attention.values())}
    first, *others = tiny.norms.split()
    out: dict[str, tuple[int, ...]] = {}
    if heads:
        out = {f"{first}.weight": (width,)} | {f"attn_{x}.weight": (n, width) for x, n in attention.items()}
        out["attn_output.weight"] = (width, q_width)
    if ffn:
        out |= {f"{name}.weight": (width,) for name in others} | mlp(tiny, i, ffn)
    if tiny.qkv_bias:
        out |= {f"attn_{x}.bias": (n,) for x, n in attention.items()}
    if tiny.qk_norm:
        wide = {True: (1, 1), "whole": (heads, kv_heads), "heads": (heads, kv_heads)}[tiny.qk_norm]
        shapes = [(n, tiny.head_dim) if tiny.qk_norm == "heads" else (n * tiny.head_dim,) for n in wide]
        out |= {f"attn_{x}_norm.weight": shape for x, shape in zip("qk", shapes, strict=True)}
    weights = {name.removesuffix(".weight"): shape for name, shape in out.items()}
    out |= {
        f"{name}.bias": weights[name][: max(1, len(weights[name]) - 1)]
        for name in tiny.biases.split()
        if name in weights
    }
    more = {name: n for name, n in tiny.more.items() if "probs" not in name or i >= tiny.dense}
    return out | {name: (n,) for name, n in more.items() if "nextn" not in name or i == tiny.n_layers - 1}


def mlp(tiny: Tiny, i: int, ffn: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the feed-forward network of one layer."""
    width = tiny.width
    if tiny.experts and i >= tiny.dense:
        inner = tiny.expert_ffn or ffn
        out: dict[str, tuple[int, ...]] = {"ffn_gate_inp.weight": (tiny.experts, width)}
        out |= {f"ffn_{x}_exps.weight": (tiny.experts, inner, width) for x in ("gate", "up")}
        out["ffn_down_exps.weight"] = (tiny.experts, width, inner)
        if tiny.shared:
            out |= {f"ffn_{x}_shexp.weight": (tiny.shared, width) for x in ("gate", "up")}
            out["ffn_down_shexp.weight"] = (width, tiny.shared)
        return out
    rows = {"gated": {"gate": ffn, "up": ffn}, "fused": {"up": 2 * ffn}, "plain": {"up": ffn}}[tiny.mlp]
    return {f"ffn_{x}.weight": (n, width) for x, n in rows.items()} | {"ffn_down.weight": (width, ffn)}


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
