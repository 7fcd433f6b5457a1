"""The NumPy meaning of every plain op, in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from woolly.plan import Rope, Step, rope_frequencies
from woolly.runtime.batch import Batch
from woolly.runtime.state import PAGE_SIZE, State
from woolly.runtime.weights import WeightStore

__all__ = [
    "PLAIN_OPS",
    "Context",
    "apply_linear",
    "apply_rms_norm",
    "apply_rope",
    "apply_swiglu",
    "attend_cache",
    "scaled",
    "store_cache",
]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Context:
    """What an op may look at besides its inputs."""

    weights: WeightStore
    batch: Batch
    state: State


def apply_rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Each group of len(weight) columns divided by its root mean square, times the weight."""
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean_square = np.mean(groups.astype(np.float64) ** 2, axis=-1, keepdims=True)
    scale = (1.0 / np.sqrt(mean_square + eps)).astype(np.float32)
    y: Float32 = groups * scale * weight
    return y.reshape(x.shape)


def apply_linear(x: Float32, weight: Float32, bias: Float32 | None) -> Float32:
    """X times the weight transposed, plus the bias."""
    y: Float32 = x @ weight.T
    return y if bias is None else y + bias


def apply_rope(x: Float32, rope: Rope, divisors: Float32 | None, positions: npt.NDArray[np.int32]) -> Float32:
    """Each head turned by its row's position."""
    frequencies, magnitude = rope_frequencies(rope, divisors)
    angles = positions.astype(np.float64)[:, None, None] * frequencies
    cos = (np.cos(angles) * magnitude).astype(np.float32)
    sin = (np.sin(angles) * magnitude).astype(np.float32)
    out: Float32 = x.reshape(len(x), -1, rope.head_dim).copy()
    half = rope.n_rot // 2
    if rope.style == "adjacent":
        a, b = slice(0, rope.n_rot, 2), slice(1, rope.n_rot, 2)
    else:
        a, b = slice(0, half), slice(half, rope.n_rot)
    left, right = out[..., a].copy(), out[..., b].copy()
    out[..., a] = left * cos - right * sin
    out[..., b] = left * sin + right * cos
    return out.reshape(x.shape)


def store_cache(c: Context, layer: int, k: Float32, v: Float32) -> None:
    """K and v of every row, put into the pages of its sequence."""
    for s in range(c.batch.n_sequences):
        rows = slice(c.batch.offsets[s], c.batch.offsets[s + 1])
        positions = c.batch.positions[rows]
        at = c.batch.pages[s][positions // PAGE_SIZE], positions % PAGE_SIZE
        for cache, new in ((c.state.k[layer], k), (c.state.v[layer], v)):
            cache[at] = new[rows].reshape(-1, *cache.shape[2:])


def attend_cache(c: Context, step: Step, q: Float32) -> Float32:
    """Causal softmax attention of q over the cache."""
    keys, values = c.state.k[step.integer("layer")], c.state.v[step.integer("layer")]
    n_kv_heads, head_dim = keys.shape[2:]
    queries = q.reshape(len(q), n_kv_heads, -1, head_dim)  # rows, KV heads, query heads per KV head, head_dim
    out = np.empty_like(queries)
    for s in range(c.batch.n_sequences):
        rows = slice(c.batch.offsets[s], c.batch.offsets[s + 1])
        positions = c.batch.positions[rows]
        n_past = int(positions[-1]) + 1
        used = c.batch.pages[s][: -(-n_past // PAGE_SIZE)]
        past_k = keys[used].reshape(-1, n_kv_heads, head_dim)[:n_past].astype(np.float32)
        past_v = values[used].reshape(-1, n_kv_heads, head_dim)[:n_past].astype(np.float32)
        seen = np.arange(n_past) <= positions[:, None]
        if window := step.integer("window"):
            seen &= np.arange(n_past) > positions[:, None] - window
        scores = np.einsum("rhgd,phd->hgrp", queries[rows], past_k, optimize=True) * np.float32(step.number("scale"))
        if softcap := step.number("softcap"):
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        out[rows] = np.einsum("hgrp,phd->rhgd", _softmax(scores, seen), past_v, optimize=True)
    return out.reshape(q.shape)


def _softmax(scores: Float32, seen: npt.NDArray[np.bool_]) -> Float32:
    scores = np.where(seen, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Float32 = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def apply_swiglu(gate: Float32, up: Float32) -> Float32:
    """silu(gate) * up."""
    # exp of a large positive argument is inf, and gate / inf is the right limit: 0.
    with np.errstate(over="ignore"):
        y: Float32 = gate / (np.float32(1) + np.exp(-gate)) * up
    return y


def scaled(x: Float32, factor: float) -> Float32:
    """X times a constant, in f32."""
    y: Float32 = x * np.float32(factor)
    return y


def _embed(c: Context, step: Step) -> Float32:
    return c.weights.rows(step.weights[0].name, c.batch.tokens)


def _rms_norm(c: Context, step: Step, x: Float32) -> Float32:
    return apply_rms_norm(x, c.weights.get(step.weights[0].name), step.number("eps"))


def _linear(c: Context, step: Step, x: Float32) -> Float32:
    weight, *bias = (c.weights.get(w.name) for w in step.weights)
    return apply_linear(x, weight, bias[0] if bias else None)


def _rope(c: Context, step: Step, x: Float32) -> Float32:
    rope = step.rope()
    assert rope is not None
    divisors = c.weights.get(step.weights[0].name) if step.weights else None
    return apply_rope(x, rope, divisors, c.batch.positions)


def _attention(c: Context, step: Step, q: Float32, k: Float32, v: Float32) -> Float32:
    store_cache(c, step.integer("layer"), k, v)
    return attend_cache(c, step, q)


def _swiglu(c: Context, step: Step, gate: Float32, up: Float32) -> Float32:
    return apply_swiglu(gate, up)


def _add(c: Context, step: Step, a: Float32, b: Float32) -> Float32:
    return a + b


def _scale(c: Context, step: Step, x: Float32) -> Float32:
    return scaled(x, step.number("factor"))


def _output_rows(c: Context, step: Step, x: Float32) -> Float32:
    return x[c.batch.output_rows]


PLAIN_OPS: Mapping[str, Callable[..., Float32]] = {
    "add": _add,
    "attention": _attention,
    "embed": _embed,
    "linear": _linear,
    "output_rows": _output_rows,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "scale": _scale,
    "swiglu": _swiglu,
}
