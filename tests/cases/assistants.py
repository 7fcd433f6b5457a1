"""A tiny assistant for a tiny Gemma 4, and what it guesses, in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cases.tiny import N_VOCAB, byte_vocabulary
from woolly.gguf import GGUFWriter

BACKBONE, HEADS, FFN = 64, 4, 48
EPS = 1e-5
WINDOWS = [True, False]
DIVISORS = np.array([1.0] * 4 + [1e30] * 12, np.float32)


def assistant_tensors(width: int = 32, seed: int = 3) -> dict[str, np.ndarray]:
    """The weights of a random assistant of two layers: one with a window, one without."""
    random = np.random.RandomState(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.randn(rows, columns) * columns**-0.5).astype(np.float32)

    def norm(n: int, size: float = 1.0) -> np.ndarray:
        return (size + 0.1 * random.randn(n)).astype(np.float32)

    out = {
        "token_embd.weight": matrix(N_VOCAB, width),
        "output_norm.weight": norm(width),
        "rope_freqs.weight": DIVISORS,
    }
    out |= {"nextn.pre_projection.weight": matrix(width, 2 * BACKBONE)}
    out |= {"nextn.post_projection.weight": matrix(BACKBONE, width)}
    for i, has_window in enumerate(WINDOWS):
        q = HEADS * (16 if has_window else 32)
        own = {f"{x}.weight": norm(width) for x in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")}
        own |= {"attn_q.weight": matrix(q, width), "attn_output.weight": matrix(width, q)}
        own |= {"attn_q_norm.weight": norm(q // HEADS, 0.5), "layer_output_scale.weight": norm(1)}
        own |= {f"ffn_{x}.weight": matrix(FFN, width) for x in ("gate", "up")} | {"ffn_down.weight": matrix(width, FFN)}
        out |= {f"blk.{i}.{name}": array for name, array in own.items()}
    return out


def guessing_assistant(table: np.ndarray) -> dict[str, np.ndarray]:
    """An assistant that hands the last token's embedding to the model's own table."""
    out = assistant_tensors(BACKBONE)
    eye = np.eye(BACKBONE, dtype=np.float32)
    out["nextn.pre_projection.weight"] = np.concatenate([eye, 0 * eye], 1)
    for name, array in out.items():
        if "post_attention_norm" in name or "post_ffw_norm" in name:
            out[name] = 0 * array
        elif "norm" in name or "layer_output_scale" in name:
            out[name] = np.ones_like(array)
    return out | {"token_embd.weight": table}


def write_assistant(path: Path, tensors: dict[str, np.ndarray], window: int, **keys: int) -> Path:
    """Writes an assistant."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", "gemma4-assistant")
    own = {
        "block_count": 2,
        "nextn_predict_layers": 2,
        "context_length": 512,
        "embedding_length": tensors["output_norm.weight"].shape[0],
        "embedding_length_out": BACKBONE,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": [2, 1],
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": WINDOWS,
        "attention.shared_kv_layers": 2,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 10000.0,
    }
    for key, value in (own | keys).items():
        writer.add(f"gemma4-assistant.{key}", value)
    for key, value in byte_vocabulary().items():
        writer.add(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write()
    return path


def kept(model: dict[str, np.ndarray], layer: int, x: np.ndarray, has_window: bool) -> tuple[np.ndarray, np.ndarray]:
    """K and V [position, head, column] that a layer of the model keeps of its input rows."""
    own = {k.removeprefix(f"blk.{layer}."): v for k, v in model.items() if k.startswith(f"blk.{layer}.")}
    head = 16 if has_window else 32
    h = _norm(x, own["attn_norm.weight"])
    k = (h @ own["attn_k.weight"].T).reshape(len(x), -1, head)
    v = (h @ own["attn_v.weight"].T).reshape(k.shape) if "attn_v.weight" in own else k
    return _turned(_norm(k, own["attn_k_norm.weight"]), np.arange(len(x))), _norm(v, 1.0)


def guess(
    tensors: dict[str, np.ndarray],
    table: np.ndarray,
    token: int,
    hidden: np.ndarray,
    keys: list[tuple[np.ndarray, np.ndarray]],
    window: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Logits after a token that stands behind all keys, and what the next row brings."""
    x = np.concatenate([table[token] * BACKBONE**0.5, hidden]) @ tensors["nextn.pre_projection.weight"].T
    for i, ((k, v), has_window) in enumerate(zip(keys, WINDOWS, strict=True)):
        own = {name.removeprefix(f"blk.{i}."): array for name, array in tensors.items()}
        q = (_norm(x, own["attn_norm.weight"]) @ own["attn_q.weight"].T).reshape(1, HEADS, -1)
        q = _turned(_norm(q, own["attn_q_norm.weight"]), np.array([len(k)]))[0]
        seen = slice(max(0, len(k) + 1 - window), None) if has_window else slice(None)
        k, v = (np.repeat(one[seen], HEADS // one.shape[1], axis=1) for one in (k, v))
        scores = np.einsum("hd,thd->ht", q, k)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        a = np.einsum("ht,thd->hd", share / share.sum(axis=1, keepdims=True), v).reshape(-1)
        x = x + _norm(a @ own["attn_output.weight"].T, own["post_attention_norm.weight"])
        z = _norm(x, own["ffn_norm.weight"])
        gate, up = own["ffn_gate.weight"] @ z, own["ffn_up.weight"] @ z
        gelu = 0.5 * gate * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        f = (gelu * up) @ own["ffn_down.weight"].T
        x = (x + _norm(f, own["post_ffw_norm.weight"])) * own["layer_output_scale.weight"]
    y = _norm(x, tensors["output_norm.weight"])
    return tensors["token_embd.weight"] @ y, tensors["nextn.post_projection.weight"] @ y


def _norm(x: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def _turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The first half of each head turned with the second by positions; heads of 32 have divisors."""
    n = x.shape[-1]
    base, divisors = (1e6, DIVISORS) if n == 32 else (10000.0, 1.0)
    angles = positions[:, None] * (base ** (-np.arange(0, n, 2) / n) / divisors)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : n // 2], x[..., n // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
