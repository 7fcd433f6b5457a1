"""Tiny heads of files of their own that guess tokens for a tiny model, some of them well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.tiny import N_VOCAB, byte_vocabulary
from woolly.gguf import GGUFWriter
from woolly.quant import GGMLType

WIDTH, HEADS, FFN = 64, 4, 96
HEAD_DIM = WIDTH // HEADS
EPS = 1e-5


def eagle3_tensors(seed: int = 1, n_guessed: int = 200, read_width: int = WIDTH) -> dict[str, np.ndarray]:
    """The weights of a random head that knows some of the tokens."""
    random = np.random.RandomState(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.randn(rows, columns) * columns**-0.5).astype(np.float32)

    def norm(width: int) -> np.ndarray:
        return (1 + 0.1 * random.randn(width)).astype(np.float32)

    out = {f"attn_{x}.weight": matrix(WIDTH, 2 * WIDTH) for x in "qkv"} | {"attn_output.weight": matrix(WIDTH, WIDTH)}
    out |= {f"ffn_{x}.weight": matrix(FFN, WIDTH) for x in ("gate", "up")} | {"ffn_down.weight": matrix(WIDTH, FFN)}
    out |= {f"{x}.weight": norm(WIDTH) for x in ("attn_norm", "attn_norm_2", "ffn_norm")}
    out = {f"blk.0.{name}": array for name, array in out.items()}
    out |= {"fc.weight": matrix(WIDTH, 3 * read_width), "enc.output_norm.weight": norm(3 * read_width)}
    out |= {"output_norm.weight": norm(WIDTH), "output.weight": matrix(n_guessed, WIDTH)}
    return out | {"d2t": np.sort(random.permutation(N_VOCAB)[:n_guessed]).astype(np.int64)}


def guessing_eagle3(table: np.ndarray, head: np.ndarray) -> dict[str, np.ndarray]:
    """A head whose attention sees its own row alone, and hands on the next token's embedding."""
    out, eye, zero = eagle3_tensors(), np.eye(WIDTH, dtype=np.float32), np.zeros((WIDTH, WIDTH), np.float32)
    first = np.concatenate([eye, zero], 1)
    out |= {"blk.0.attn_q.weight": 4 * first, "blk.0.attn_k.weight": 4 * first, "blk.0.attn_v.weight": first}
    out |= {"blk.0.attn_output.weight": eye, "fc.weight": 0 * out["fc.weight"]}
    out |= {"blk.0.ffn_down.weight": 0 * out["blk.0.ffn_down.weight"], "token_embd.weight": table}
    out |= {name: np.ones_like(array) for name, array in out.items() if "norm" in name}
    return out | {"output.weight": head[out["d2t"]]}


def write_eagle3(path: Path, tensors: dict[str, np.ndarray], layers: list[int], **keys: Any) -> Path:
    """Writes a head that reads the inputs of these layers."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", "eagle3")
    own = {
        "block_count": 1,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": 10000.0,
        "target_layers": layers,
        "target_hidden_size": WIDTH,
        "norm_before_residual": False,
        "norm_before_fc": False,
    }
    for key, value in (own | keys).items():
        writer.add(f"eagle3.{key}", value)
    for key, value in byte_vocabulary().items():
        writer.add(key, value)
    for name, array in tensors.items():
        if name == "enc.output_norm.weight" and not keys.get("norm_before_fc"):
            continue
        if array.dtype == np.int64:
            writer.add_raw_tensor(name, GGMLType.I64, array.shape, array.tobytes())
        else:
            writer.add_tensor(name, array)
    writer.write()
    return path


def eagle3_features(
    tensors: dict[str, np.ndarray], inputs: list[np.ndarray], is_read_normed: bool = False
) -> np.ndarray:
    """Input of the EAGLE-3 head: the projection of three layer inputs, as in the paper."""
    x = np.concatenate(inputs, axis=1)
    return (_norm(x, tensors["enc.output_norm.weight"]) if is_read_normed else x) @ tensors["fc.weight"].T


def eagle3_logits(
    tensors: dict[str, np.ndarray],
    features: np.ndarray,
    tokens: list[int],
    table: np.ndarray,
    is_residual_normed: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the guesses after each row, and the features of the next ones: features beside the token after each."""
    own = {name.removeprefix("blk.0."): array for name, array in tensors.items()}
    h = _norm(features, own["attn_norm_2.weight"])
    pair = np.concatenate([_norm(table[tokens], own["attn_norm.weight"]), h], axis=1)
    q, k, v = ((pair @ own[f"attn_{x}.weight"].T).reshape(-1, HEADS, HEAD_DIM) for x in "qkv")
    q, k = _turned(q), _turned(k)
    mixed = np.empty_like(q)
    for at in range(len(tokens)):
        scores = np.einsum("hd,thd->ht", q[at], k[: at + 1]) / HEAD_DIM**0.5
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[at] = np.einsum("ht,thd->hd", share / share.sum(axis=1, keepdims=True), v[: at + 1])
    x = (h if is_residual_normed else features) + mixed.reshape(-1, WIDTH) @ own["attn_output.weight"].T
    z = _norm(x, own["ffn_norm.weight"])
    gate, up = z @ own["ffn_gate.weight"].T, z @ own["ffn_up.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ own["ffn_down.weight"].T
    return _norm(x, own["output_norm.weight"]) @ own["output.weight"].T, x


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def _turned(x: np.ndarray) -> np.ndarray:
    """Neighbours of each head turned by the position of their row."""
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = np.empty_like(x)
    out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    return out
