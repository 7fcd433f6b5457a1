"""NumPy reference of the residual-stream ops."""

from __future__ import annotations

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.elements import apply_act
from woolly.runtime.reference.ops import Float32, OpContext, reference


@reference("mix_streams")
def mix_streams(c: OpContext, step: Step, x: Float32, coefs: Float32) -> Float32:
    """Return weighted sums of streams, with coefficients per row."""
    n = step.integer("streams")
    weights = coefs.reshape(len(x), -1, n) + np.float32(step.number("plus"))
    y: Float32 = np.einsum("rji,rid->rjd", weights, x.reshape(len(x), n, -1)).reshape(len(x), -1)
    return y


@reference("hyper_connections")
def hyper_connections(c: OpContext, step: Step, x: Float32) -> Float32:
    """Return the coefficients of hyper-connections. The last n * n form a doubly stochastic matrix."""
    n, eps = step.integer("streams"), np.float32(step.number("eps"))
    scale, base = (c.weights.get(w.name) for w in step.weights)
    logits = x * np.repeat(scale, (n, n, n * n)[: len(scale)]) + base
    pre: Float32 = apply_act("sigmoid", logits[:, :n]) + eps
    if len(scale) == 1:
        return pre
    post = np.float32(2) * apply_act("sigmoid", logits[:, n : 2 * n])
    mixed = logits[:, 2 * n :].reshape(len(x), n, n)
    mixed = np.exp(mixed - mixed.max(axis=2, keepdims=True))
    mixed = mixed / mixed.sum(axis=2, keepdims=True) + eps
    for axis in (1, *(2, 1) * (step.integer("iterations") - 1)):
        mixed = mixed / (mixed.sum(axis=axis, keepdims=True) + eps)
    return np.concatenate([pre, post, mixed.swapaxes(1, 2).reshape(len(x), -1)], axis=1)


@reference("match_rms")
def match_rms(c: OpContext, step: Step, x: Float32, like: Float32) -> Float32:
    """Rescale streams to the mean square of another stream."""
    streams = x.reshape(len(x), -1, like.shape[1]).astype(np.float64)
    squares = np.maximum(np.mean(streams**2, axis=2, keepdims=True), step.number("least"))
    wanted = np.mean(like.astype(np.float64) ** 2, axis=1)[:, None, None]
    y: Float32 = (streams * np.sqrt(wanted / squares)).astype(np.float32)
    return y.reshape(x.shape)


@reference("gaussian_topk")
def gaussian_topk(c: OpContext, step: Step, x: Float32) -> Float32:
    """Return relu(x - (mean + deviations * standard deviation)) per row."""
    rows = x.astype(np.float64)
    floor = rows.mean(axis=1) + step.number("deviations") * rows.std(axis=1)
    y: Float32 = np.maximum(x - floor.astype(np.float32)[:, None], np.float32(0))
    return y
