"""NumPy reference of the recurrent ops, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.elements import apply_act
from woolly.runtime.reference.ops import Float32, OpContext, reference


def scanned(c: OpContext, step: Step, shape: tuple[int, ...], advance: Callable[[int, Float32], Float32]) -> None:
    """Call advance(row, state), which returns the state after the row, for the rows of each sequence in order."""
    memory, snapshots = c.state.slots[step.integer("entry")], dict(c.batch.snapshots.tolist())
    for s in range(c.batch.n_sequences):
        source = c.batch.slots_in[s]
        state = np.zeros(shape, np.float32) if source < 0 else memory[source].reshape(shape).copy()
        for row in range(c.batch.offsets[s], c.batch.offsets[s + 1]):
            state = advance(row, state)
            if row in snapshots:
                memory[snapshots[row]] = state.reshape(-1)
        memory[c.batch.slots_out[s]] = state.reshape(-1)


@reference("causal_conv1d")
def _causal_conv1d(c: OpContext, step: Step, x: Float32) -> Float32:
    weight, *bias = (c.weights.get(w.name).reshape(w.shape) for w in step.weights)
    y = np.empty_like(x)

    def advance(row: int, tail: Float32) -> Float32:
        rows = np.vstack([tail, x[row]])
        y[row] = (rows[:: step.integer("gap") + 1] * weight.T).sum(axis=0)
        return rows[1:]

    scanned(c, step, ((step.integer("kernel") - 1) * (step.integer("gap") + 1), x.shape[1]), advance)
    y = y + bias[0] if bias else y
    return apply_act("silu", y) if step.text("act") else y


@reference("token_shift")
def _token_shift(c: OpContext, step: Step, x: Float32) -> Float32:
    y = np.empty_like(x)

    def advance(row: int, before: Float32) -> Float32:
        y[row] = before
        latest: Float32 = x[row]
        return latest

    scanned(c, step, x.shape[1:], advance)
    return y


@reference("ngrams")
def _ngrams(c: OpContext, step: Step) -> Float32:
    factors, sizes, firsts = ([int(x) for x in step.text(name).split()] for name in ("factors", "sizes", "firsts"))
    end, each = step.integer("end"), len(sizes) // (len(factors) - 1)
    rows = np.empty((len(c.batch.tokens), len(sizes)), np.int64)

    def advance(row: int, past: Float32) -> Float32:
        token, hashed, is_cut = int(c.batch.tokens[row]), 0, False
        for i, factor in enumerate(factors):
            before = token if i == 0 else int(past[i - 1]) - 1  # 0 is before the start of the sequence
            is_cut = is_cut or (i > 0 and before in (-1, end))
            hashed ^= (end if is_cut else before) * factor % 2**64
            for head in range((i - 1) * each, i * each) if i else ():
                rows[row, head] = hashed % sizes[head] + firsts[head]
        latest: Float32 = np.concatenate([[token + 1], past[:-1]]).astype(np.float32)
        return latest

    scanned(c, step, (len(factors) - 1,), advance)
    return c.weights.rows(step.weights[0].name, rows.reshape(-1).astype(np.int32)).reshape(len(rows), -1)


@reference("delta_net")
def _delta_net(c: OpContext, step: Step, q: Float32, k: Float32, v: Float32, decay: Float32, beta: Float32) -> Float32:
    n_k, n_v = step.integer("heads_k"), step.integer("heads_v")
    head = k.shape[1] // n_k
    serves = np.arange(n_v) % n_k if step.text("order") == "mod" else np.arange(n_v) // (n_v // n_k)

    def normed(x: Float32) -> Float32:
        heads = x.reshape(len(x), n_k, head)
        squares = np.sum(heads.astype(np.float64) ** 2, axis=-1, keepdims=True)
        y: Float32 = (heads / np.sqrt(squares + step.number("eps"))).astype(np.float32)[:, serves]
        return y

    q, k, v = normed(q) * np.float32(1 / math.sqrt(head)), normed(k), v.reshape(len(v), n_v, -1)
    shrink = np.exp(decay).reshape(len(decay), n_v, -1, 1)
    y = np.empty_like(v)

    def advance(row: int, state: Float32) -> Float32:
        state = state * shrink[row]
        delta = beta[row][:, None] * (v[row] - np.einsum("hij,hi->hj", state, k[row]))
        state = state + k[row][:, :, None] * delta[:, None, :]
        y[row] = np.einsum("hij,hi->hj", state, q[row])
        return state

    scanned(c, step, (n_v, head, v.shape[2]), advance)
    return y.reshape(len(y), -1)


@reference("scan_mamba")
def _scan_mamba(c: OpContext, step: Step, x: Float32, dt: Float32, b: Float32, m: Float32) -> Float32:
    a, d = (c.weights.get(w.name) for w in step.weights)
    y = np.empty_like(x)

    def advance(row: int, state: Float32) -> Float32:
        state = state * np.exp(dt[row][:, None] * a) + (dt[row] * x[row])[:, None] * b[row]
        y[row] = state @ m[row] + d.reshape(-1) * x[row]
        return state

    scanned(c, step, a.shape, advance)
    return y


@reference("scan_mamba2")
def _scan_mamba2(c: OpContext, step: Step, x: Float32, dt: Float32, b: Float32, m: Float32) -> Float32:
    a, d = (c.weights.get(w.name).reshape(-1) for w in step.weights)
    groups, heads = step.integer("groups"), dt.shape[1]
    b, m = (np.repeat(z.reshape(len(z), groups, -1), heads // groups, axis=1) for z in (b, m))
    x = x.reshape(len(x), heads, -1)
    y = np.empty_like(x)

    def advance(row: int, state: Float32) -> Float32:
        state = state * np.exp(dt[row] * a)[:, None, None]
        state = state + b[row][:, :, None] * (dt[row][:, None] * x[row])[:, None, :]
        y[row] = np.einsum("hnp,hn->hp", state, m[row]) + d[:, None] * x[row]
        return state

    scanned(c, step, (heads, b.shape[2], x.shape[2]), advance)
    return y.reshape(len(y), -1)


@reference("wkv7")
def _wkv7(c: OpContext, step: Step, r: Float32, w: Float32, k: Float32, v: Float32, a: Float32, b: Float32) -> Float32:
    head = step.integer("head")
    r, w, k, v, a, b = (x.reshape(len(x), -1, head) for x in (r, np.exp(w), k, v, a, b))
    y = np.empty_like(v)

    def advance(row: int, state: Float32) -> Float32:
        seen = np.einsum("hij,hi->hj", state, a[row])
        state = state * w[row][:, :, None] + k[row][:, :, None] * v[row][:, None, :]
        state = state + b[row][:, :, None] * seen[:, None, :]
        y[row] = np.einsum("hij,hi->hj", state, r[row])
        return state

    scanned(c, step, (v.shape[1], head, head), advance)
    return y.reshape(len(y), -1)


@reference("lightning_attention")
def _lightning_attention(c: OpContext, step: Step, q: Float32, k: Float32, v: Float32) -> Float32:
    head = step.integer("head")
    q, k, v = (x.reshape(len(x), -1, head) for x in (q, k, v))
    n = v.shape[1]
    rates = step.number("slope") * 2.0 ** (-8.0 * np.arange(1, n + 1) / n)
    shrink = np.exp(-rates).astype(np.float32)[:, None, None]
    y = np.empty_like(v)

    def advance(row: int, state: Float32) -> Float32:
        state = state * shrink + k[row][:, :, None] * v[row][:, None, :]
        y[row] = np.einsum("hij,hi->hj", state, q[row])
        return state

    scanned(c, step, (n, head, head), advance)
    return y.reshape(len(y), -1)
