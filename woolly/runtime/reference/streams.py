"""The NumPy meaning of the ops over streams."""

from __future__ import annotations

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.ops import Float32, OpContext, reference

__all__ = ["match", "mix", "peaks"]


@reference("mix")
def mix(c: OpContext, step: Step, x: Float32, coefs: Float32) -> Float32:
    """Sums of streams by coefficients of each row."""
    n = step.integer("streams")
    weights = coefs.reshape(len(x), -1, n) + np.float32(step.number("plus"))
    y: Float32 = np.einsum("rji,rid->rjd", weights, x.reshape(len(x), n, -1)).reshape(len(x), -1)
    return y


@reference("match")
def match(c: OpContext, step: Step, x: Float32, like: Float32) -> Float32:
    """Streams brought to the mean square of another."""
    streams = x.reshape(len(x), -1, like.shape[1]).astype(np.float64)
    squares = np.maximum(np.mean(streams**2, axis=2, keepdims=True), step.number("least"))
    wanted = np.mean(like.astype(np.float64) ** 2, axis=1)[:, None, None]
    y: Float32 = (streams * np.sqrt(wanted / squares)).astype(np.float32)
    return y.reshape(x.shape)


@reference("peaks")
def peaks(c: OpContext, step: Step, x: Float32) -> Float32:
    """What is above the mean and some deviations."""
    rows = x.astype(np.float64)
    floor = rows.mean(axis=1) + step.number("deviations") * rows.std(axis=1)
    y: Float32 = np.maximum(x - floor.astype(np.float32)[:, None], np.float32(0))
    return y
