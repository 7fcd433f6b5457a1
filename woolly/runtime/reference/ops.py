"""NumPy reference of the plain ops, in f32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from woolly.plan import Rope, Step, rope_axes, rope_frequencies
from woolly.runtime.batch import Batch
from woolly.runtime.reference.state import ReferenceState
from woolly.runtime.reference.weights import WeightStore
from woolly.runtime.state import PAGE_SIZE

Function = TypeVar("Function", bound=Callable[..., Any])
Float32 = npt.NDArray[np.float32]
Meaning = Callable[..., Float32 | tuple[Float32, ...]]  # (context, step, *inputs) -> outputs

REFERENCE_OPS: dict[str, Meaning] = {}


def reference(op: str) -> Callable[[Function], Function]:
    """Register the decorated function as the implementation of an op."""

    def enter(function: Function) -> Function:
        REFERENCE_OPS[op] = function
        return function

    return enter


@dataclass(frozen=True)
class OpContext:
    """Context of an op: weights, batch and state."""

    weights: WeightStore
    batch: Batch
    state: ReferenceState


def apply_rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Divide each group of len(weight) columns by its root mean square, and multiply by the weight."""
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean_square = np.mean(groups.astype(np.float64) ** 2, axis=-1, keepdims=True)
    scale = (1.0 / np.sqrt(mean_square + eps)).astype(np.float32)
    y: Float32 = groups * scale * weight
    return y.reshape(x.shape)


def apply_linear(x: Float32, weight: Float32, bias: Float32 | None) -> Float32:
    """Return x @ weight.T plus the bias."""
    y: Float32 = x @ weight.T
    return y if bias is None else y + bias


def apply_rope(x: Float32, rope: Rope, divisors: Float32 | None, batch: Batch) -> Float32:
    """Rotate each head by its row's position, or the pairs of each section by one of its rope positions."""
    if rope.sections and batch.rope_positions is not None:
        return rotated(x, rope, divisors, batch.rope_positions[rope_axes(rope)].T)
    return rotated(x, rope, divisors, batch.positions[:, None])


def rotated(x: Float32, rope: Rope, divisors: Float32 | None, positions: npt.NDArray[np.int32]) -> Float32:
    """Rotate heads by positions: one per row, or one per row and pair."""
    frequencies, magnitude = rope_frequencies(rope, divisors)
    positions = np.maximum(positions - rope.back, 0)
    angles = positions.astype(np.float64)[:, None, :] * frequencies
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


def store_cache(c: OpContext, entry: int, *kv: Float32) -> None:
    """Store k of every row, and v unless it is a part of k, in the pages of its sequence."""
    for s in range(c.batch.n_sequences):
        rows = slice(c.batch.offsets[s], c.batch.offsets[s + 1])
        positions = c.batch.positions[rows]
        at = c.batch.table(c.state.windows[entry])[s][positions // PAGE_SIZE], positions % PAGE_SIZE
        for cache, new in zip((c.state.k[entry], c.state.v[entry]), kv, strict=False):
            cache[at] = new[rows].reshape(-1, *cache.shape[2:])


@reference("attend")
def attend_cache(c: OpContext, step: Step, q: Float32, *chosen: Float32) -> Float32:
    """Compute softmax attention of q over the cache, or over the chosen positions."""
    keys, values = c.state.k[step.integer("entry")], c.state.v[step.integer("entry")]
    n_kv_heads, head_dim = keys.shape[2:]
    v_dim = values.shape[3]
    queries = q.reshape(len(q), n_kv_heads, -1, head_dim)  # rows, KV heads, query heads per KV head, head_dim
    out = np.empty((*queries.shape[:3], v_dim), np.float32)
    for s in range(c.batch.n_sequences):
        rows = slice(c.batch.offsets[s], c.batch.offsets[s + 1])
        positions = c.batch.positions[rows]
        n_past = int(positions[-1]) + 1
        # Masked pages may be -1. The page that is read instead is masked, too.
        used = c.batch.table(c.state.windows[step.integer("entry")])[s][: -(-n_past // PAGE_SIZE)]
        past_k = keys[used].reshape(-1, n_kv_heads, head_dim)[:n_past].astype(np.float32)
        past_v = values[used].reshape(-1, n_kv_heads, v_dim)[:n_past].astype(np.float32)
        if step.by_role("k_bias"):
            past_k = past_k + _left_out(c, step, n_past).reshape(past_k.shape)
        distance = np.arange(n_past) - positions[:, None]  # rows, positions
        if chosen and c.batch.attn_ranges is not None:
            raise ValueError("rows that choose positions see no others, whatever the batch says")
        seen = _seen(step.text("mask"), step.integer("window"), positions, distance)
        if step.text("mask") in ("since", "before"):
            first = np.zeros((len(positions), 1)) if c.batch.attn_ranges is None else c.batch.attn_ranges[rows, :1]
            at = np.arange(n_past)
            seen = seen & (at >= first) if step.text("mask") == "since" else at < np.maximum(first, 1)
        elif c.batch.attn_ranges is not None and step.text("mask") not in ("all", "causal"):
            firsts, ends = (c.batch.attn_ranges[rows, i, None] for i in (0, 1))
            block = (np.arange(n_past) >= firsts) & (np.arange(n_past) < ends)
            seen = block if step.text("mask") == "block" else seen | block
        elif step.text("mask") == "block":
            raise ValueError("the batch does not say what rows see")
        if chosen:
            seen = _chosen(chosen[0][rows].reshape(len(positions), -1, step.integer("chosen")), n_past)
        asked = (
            queries[rows] * _tempers(step, positions)[:, None, None, None] if step.number("temper") else queries[rows]
        )
        scores = np.einsum("rhgd,phd->hgrp", asked, past_k, optimize=True) * np.float32(step.number("scale"))
        if alibi := step.number("alibi"):
            slopes = alibi_slopes(alibi, n_kv_heads * scores.shape[1]).reshape(n_kv_heads, -1, 1, 1)
            scores = scores - slopes * np.abs(distance).astype(np.float32)
        for table in step.by_role("distances"):
            buckets = distance_buckets(distance, table.shape[0], step.text("mask") == "all")
            added = c.weights.get(table.name)[buckets]  # rows, positions, heads
            scores = scores + added.transpose(2, 0, 1).reshape(n_kv_heads, -1, *distance.shape)
        if softcap := step.number("softcap"):
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        named = step.by_role("sinks")
        sinks = c.weights.get(named[0].name).reshape(n_kv_heads, -1, 1, 1) if named else None
        out[rows] = np.einsum("hgrp,phd->rhgd", softmax(scores, seen, sinks), past_v, optimize=True)
    return out.reshape(len(q), -1)


def _left_out(c: OpContext, step: Step, n_past: int) -> Float32:
    """Return the rotated key bias of all positions, which stored keys do not include."""
    rope = step.rope()
    assert rope is not None
    bias, *divisors = (c.weights.get(weight.name).reshape(-1) for weight in step.by_role("k_bias", "divisors"))
    positions = np.arange(n_past, dtype=np.int32)[:, None]
    return rotated(np.repeat(bias[None], n_past, axis=0), rope, divisors[0] if divisors else None, positions)


def _seen(
    mask: str, window: int, positions: npt.NDArray[np.int32], distance: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return the attention mask [rows, positions]. `distance` is the attended position minus the row's position."""
    if mask == "all":
        return np.abs(distance) <= window // 2 if window else np.full(distance.shape, True)
    if window == 0:
        return distance <= 0
    first = positions % window if mask == "chunked" else np.full(len(positions), window - 1)
    return (distance <= 0) & (distance >= -first[:, None])


def _chosen(positions: Float32, n_past: int) -> npt.NDArray[np.bool_]:
    """Return the attention mask [groups, 1, rows, n_past] of chosen positions; -1: none."""
    seen = np.zeros((*positions.shape[:2], n_past + 1), np.bool_)
    np.put_along_axis(seen, positions.astype(np.int64), True, axis=2)
    by_group: npt.NDArray[np.bool_] = seen[..., :n_past].transpose(1, 0, 2)
    return by_group[:, None]


def alibi_slopes(most: float, n_heads: int) -> Float32:
    """Return the ALiBi slope of each head. `most` is the largest exponent of 1/2.

    Heads beyond the largest power of two use the slopes in between.
    """
    whole = 2 ** int(np.log2(n_heads))
    exponents = [most * (i + 1) / whole for i in range(whole)]
    exponents += [most * (2 * i + 1) / (2 * whole) for i in range(n_heads - whole)]
    return (2.0 ** -np.array(exponents)).astype(np.float32)


_FARTHEST = 128  # from here on, distances share a bucket


def distance_buckets(distance: npt.NDArray[np.int64], n: int, sees_later: bool = True) -> npt.NDArray[np.int64]:
    """Return T5's distance buckets: half of the buckets are for later positions if these are visible.

    The first half of the buckets of a direction cover one distance each. The others cover growing ranges, up to 128.
    """
    side = n // 2 if sees_later else n
    single, far = side // 2, np.abs(distance if sees_later else np.minimum(distance, 0))
    if single >= _FARTHEST:
        coarse = np.full_like(far, side - 1)
    else:
        # At the start of a bucket, the share is an integer up to f64 rounding.
        share = np.log(np.clip(far, single, _FARTHEST) / single) / np.log(_FARTHEST / single)
        coarse = np.minimum(single + (share * (side - single) + 1e-9).astype(np.int64), side - 1)
    return np.where((distance > 0) & sees_later, side, 0) + np.where(far < single, far, coarse)


def _tempers(step: Step, positions: npt.NDArray[np.int32]) -> Float32:
    """Return the temperature factor of q per row, which grows with the log of the position."""
    steps = (positions + step.integer("temper_offset")) // step.integer("temper_length")
    factor: npt.NDArray[np.float64] = 1.0 + step.number("temper") * np.log1p(steps)
    return factor.astype(np.float32)


def softmax(scores: Float32, seen: npt.NDArray[np.bool_], sinks: Float32 | None) -> Float32:
    """Compute softmax over the visible positions. A sink adds to the denominator only."""
    scores = np.where(seen, scores, np.float32(-np.inf))
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        with np.errstate(over="ignore"):  # a sink far above all scores dominates
            total = total + np.exp(sinks - top)
    gather_weights: Float32 = weights / total
    return gather_weights


def scaled(x: Float32, factor: float) -> Float32:
    """Multiply x by a constant, in f32."""
    y: Float32 = x * np.float32(factor)
    return y


@reference("embed")
def _embed(c: OpContext, step: Step) -> Float32:
    return c.weights.rows(step.weights[0].name, c.batch.tokens)


@reference("rms_norm")
def _rms_norm(c: OpContext, step: Step, x: Float32) -> Float32:
    weights = [c.weights.get(w.name) for w in step.weights] or [np.ones(step.integer("group"), np.float32)]
    return apply_rms_norm(x, weights[0], step.number("eps"))


@reference("hidden")
def _hidden(c: OpContext, step: Step) -> Float32:
    rows = c.batch.hidden
    if rows is None:
        raise ValueError("the batch has no hidden states, which this plan begins with")
    if c.batch.is_hidden_normed or not step.weights:
        return rows
    return apply_rms_norm(rows, c.weights.get(step.weights[0].name), step.number("eps"))


@reference("layer_norm")
def _layer_norm(c: OpContext, step: Step, x: Float32) -> Float32:
    group = step.integer("group")
    groups = x.reshape(len(x), x.shape[1] // group, group).astype(np.float64)  # -1 fails without rows
    mean = groups.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean((groups - mean) ** 2, axis=-1, keepdims=True) + step.number("eps"))
    y: Float32 = ((groups - mean) / deviation).astype(np.float32)
    weight, bias = (*(c.weights.get(w.name) for w in step.weights), None, None)[:2]
    if weight is not None:
        y = y * weight
    return (y if bias is None else y + bias).reshape(x.shape)


@reference("linear")
def _linear(c: OpContext, step: Step, x: Float32) -> Float32:
    weight, *bias = (c.weights.get(w.name).reshape(w.shape) for w in step.weights)
    return apply_linear(x, weight, bias[0] if bias else None)


@reference("linear_id")
def _linear_id(c: OpContext, step: Step, x: Float32) -> Float32:
    weights = [c.weights.get(w.name) for w in step.weights]
    if c.batch.gather_rows is None:
        return apply_linear(x, weights[0], None)
    gather_rows = c.batch.gather_rows[:, 0] if len(x) == c.batch.n_rows else c.batch.gather_rows[c.batch.output_rows, 0]
    if gather_rows.size and not 0 <= gather_rows.min() <= gather_rows.max() < len(weights):
        raise ValueError("a row is to be multiplied with a matrix that the step does not have")
    y = np.empty((len(x), step.weights[0].shape[0]), np.float32)
    for place, weight in enumerate(weights):
        y[gather_rows == place] = apply_linear(x[gather_rows == place], weight, None)
    return y


@reference("per_head_linear")
def _per_head_linear(c: OpContext, step: Step, x: Float32) -> Float32:
    weight = c.weights.get(step.weights[0].name)
    weight = weight.reshape(x.shape[1] // weight.shape[-1], -1, weight.shape[-1])
    heads = x.reshape(len(x), len(weight), -1).swapaxes(0, 1)
    y: Float32 = (heads @ weight.swapaxes(1, 2)).swapaxes(0, 1)
    return y.reshape(len(x), -1)


@reference("rope")
def _rope(c: OpContext, step: Step, x: Float32) -> Float32:
    rope = step.rope()
    assert rope is not None
    divisors = c.weights.get(step.weights[0].name) if step.weights else None
    return apply_rope(x, rope, divisors, c.batch)


@reference("attention")
def _attention(c: OpContext, step: Step, q: Float32, *kv: Float32) -> Float32:
    n_stored = len(kv) - (step.integer("chosen") > 0)
    if n_stored:
        store_cache(c, step.integer("entry"), *kv[:n_stored])
    return attend_cache(c, step, q, *kv[n_stored:])


@reference("add")
def _add(c: OpContext, step: Step, a: Float32, b: Float32) -> Float32:
    return a + b


@reference("scale")
def _scale(c: OpContext, step: Step, x: Float32) -> Float32:
    return scaled(x, step.number("factor"))


@reference("output_rows")
def _output_rows(c: OpContext, step: Step, x: Float32) -> Float32:
    return x[c.batch.output_rows]
