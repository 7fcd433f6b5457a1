"""Tiny heads that fill in blocks of tokens for a tiny model, and what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.tiny import N_VOCAB, byte_vocabulary
from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, N_LAYERS = 64, 4, 2, 16, 96, 2
EPS, MASK, BLOCK = 1e-5, 300, 6
Arrays = dict[str, np.ndarray]


def dflash_tensors(n_read: int, seed: int = 1) -> Arrays:
    """The weights of a random head that reads `n_read` layers, without a table and a matrix of logits of its own."""
    random = np.random.RandomState(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.randn(rows, columns) * columns**-0.5).astype(np.float32)

    def norm(width: int) -> np.ndarray:
        return (1 + 0.1 * random.randn(width)).astype(np.float32)

    out = {"fc.weight": matrix(WIDTH, n_read * WIDTH), "enc.output_norm.weight": norm(WIDTH)}
    out["output_norm.weight"] = norm(WIDTH)
    for i in range(N_LAYERS):
        rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        own = {f"attn_{x}": matrix(n, WIDTH) for x, n in rows.items()}
        own |= {"attn_output": matrix(WIDTH, HEADS * HEAD_DIM), "ffn_down": matrix(WIDTH, FFN)}
        own |= {f"ffn_{x}": matrix(FFN, WIDTH) for x in ("gate", "up")}
        own |= {f"{x}_norm": norm(WIDTH) for x in ("attn", "ffn")}
        own |= {f"attn_{x}_norm": norm(HEAD_DIM) for x in "qk"}
        out |= {f"blk.{i}.{name}.weight": array for name, array in own.items()}
    return out


def guessing_dflash(n_read: int, table: np.ndarray) -> Arrays:
    """A head whose masks hand on the embedding of the token before them: everything else that they see is zero."""
    out, eye = dflash_tensors(n_read), np.eye(WIDTH, dtype=np.float32)
    halves = eye.reshape(KV_HEADS, 2, HEAD_DIM, WIDTH)[:, 0].reshape(-1, WIDTH)  # each KV head has two query heads
    for name, array in out.items():
        if name.endswith(("fc.weight", "ffn_down.weight")) or (name.startswith("blk.1.") and "attn_v." in name):
            out[name] = 0 * array
        elif "norm.weight" in name:
            out[name] = np.ones_like(array)
    out |= {"blk.0.attn_v.weight": halves, "blk.0.attn_output.weight": eye}
    own, d2t = table.copy(), np.arange(0, N_VOCAB, 2, dtype=np.int64)
    own[MASK] = 0
    both = np.where(np.arange(WIDTH)[None] // HEAD_DIM % 2 == 0, table, 0)[:, _first_halves()]
    return out | {"token_embd.weight": own, "output.weight": both[d2t].astype(np.float32), "d2t": d2t}


def _first_halves() -> np.ndarray:
    """The column of a row that both query heads of a KV head show."""
    at = np.arange(WIDTH)
    return at // (2 * HEAD_DIM) * 2 * HEAD_DIM + at % HEAD_DIM


def write_dflash(path: Path, tensors: Arrays, layers: list[int], mask: int | None = MASK, **keys: Any) -> Path:
    """Writes a head that reads the inputs of these layers."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", "dflash")
    own = {
        "block_count": N_LAYERS,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 10000.0,
        "target_layers": layers,
        "block_size": BLOCK,
    }
    for key, value in (own | keys).items():
        writer.add(f"dflash.{key}", value)
    for key, value in byte_vocabulary().items():
        writer.add(key, value)
    if mask is not None:
        writer.add("tokenizer.ggml.mask_token_id", mask)
    for name, array in tensors.items():
        if array.dtype == np.int64:
            writer.add_raw_tensor(name, GGMLType.I64, array.shape, array.tobytes())
        else:
            writer.add_tensor(name, array)
    writer.write()
    return path


def dflash_features(tensors: Arrays, inputs: list[np.ndarray]) -> np.ndarray:
    """Input of the DFlash head: the normed projection of some layer inputs."""
    return _norm(np.concatenate(inputs, axis=1) @ tensors["fc.weight"].T, tensors["enc.output_norm.weight"])


def dflash_logits(
    tensors: Arrays, features: np.ndarray, block: list[int], table: np.ndarray, head: np.ndarray, window: int = 0
) -> np.ndarray:
    """Logits of a block that stands behind rows with these features: all of its rows see all of both.

    With a window, those of the first layer see the block and what is less than the window before them.
    """
    x, n = table[block], len(features)
    at = np.arange(n, n + len(block))
    for i in range(N_LAYERS):
        own = {name.removeprefix(f"blk.{i}."): array for name, array in tensors.items()}

        def projected(rows: np.ndarray, which: str, own: Arrays = own) -> np.ndarray:
            y = (rows @ own[f"attn_{which}.weight"].T).reshape(len(rows), -1, HEAD_DIM)
            return y if which == "v" else _norm(y, own[f"attn_{which}_norm.weight"])

        h = _norm(x, own["attn_norm.weight"])
        q = _turned(projected(h, "q"), at)
        k = np.concatenate([_turned(projected(features, "k"), np.arange(n)), _turned(projected(h, "k"), at)])
        v = np.concatenate([projected(features, "v"), projected(h, "v")])
        k, v = (np.repeat(y, HEADS // KV_HEADS, axis=1) for y in (k, v))
        scores = np.einsum("qhd,thd->hqt", q, k) / HEAD_DIM**0.5
        if window and i == 0:
            scores[:, at[:, None] - np.arange(n + len(block)) >= window] = -np.inf
        share = np.exp(scores - scores.max(axis=2, keepdims=True))
        mixed = np.einsum("hqt,thd->qhd", share / share.sum(axis=2, keepdims=True), v)
        x = x + mixed.reshape(len(block), -1) @ own["attn_output.weight"].T
        z = _norm(x, own["ffn_norm.weight"])
        gate, up = z @ own["ffn_gate.weight"].T, z @ own["ffn_up.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["ffn_down.weight"].T
    return _norm(x, tensors["output_norm.weight"]) @ head.T


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def _turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Halves of each head turned by the position of their row."""
    angles = positions[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
