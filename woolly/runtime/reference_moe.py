"""The NumPy meaning of `moe`: rows go to the experts that their router scores highest."""

from __future__ import annotations

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference_ops import (
    Context,
    Float32,
    apply_linear,
    apply_rms_norm,
    apply_swiglu,
    scaled,
)

__all__ = ["apply_moe", "expert_weights"]

# Added to the sum that weights are divided by: all sigmoids of a row may be 0.
_LEAST = np.float32(1e-20)


def expert_weights(step: Step, logits: Float32) -> Float32:
    """Weight of each expert for each row, 0 for those that are not chosen. Equal logits: the lower index is chosen."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, : step.integer("n_used")]
    # exp of a large argument is inf, and 1 / inf is the right limit: 0.
    with np.errstate(over="ignore"):
        if step.text("scoring") == "sigmoid":
            scores = np.float32(1) / (np.float32(1) + np.exp(-logits))
        else:
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, order, np.take_along_axis(scores, order, axis=1), axis=1)
    if step.integer("normalize"):
        chosen /= chosen.sum(axis=1, keepdims=True) + _LEAST
    return scaled(chosen, step.number("weights_scale"))


def apply_moe(c: Context, step: Step, x: Float32, *residual: Float32) -> Float32:
    """Norm, router, then the chosen experts of each row, summed by ascending index; scale and residual at the end."""
    names = {role: weight.name for role, weight in zip(step.text("roles").split(), step.weights, strict=True)}
    if "norm" in names:
        x = apply_rms_norm(x, c.weights.get(names["norm"]), step.number("eps"))
    bias = c.weights.get(names["bias"]) if "bias" in names else None
    weights = expert_weights(step, apply_linear(x, c.weights.get(names["router"]), bias))
    y = np.zeros_like(x)
    for expert in np.flatnonzero(weights.any(axis=0)):
        (rows,) = np.nonzero(weights[:, expert])
        gate, up, down = (_expert(c, names[role], int(expert)) for role in ("gate", "up", "down"))
        hidden = apply_swiglu(apply_linear(x[rows], gate, None), apply_linear(x[rows], up, None))
        y[rows] += weights[rows, expert, None] * apply_linear(hidden, down, None)
    if step.number("scale") != 1.0:
        y = scaled(y, step.number("scale"))
    return residual[0] + y if step.text("epilogue") == "residual" else y


def _expert(c: Context, name: str, expert: int) -> Float32:
    """One matrix of a tensor of experts. All of them in f32 would be several times the file."""
    matrix: Float32 = c.weights.rows(name, np.array([expert], np.int32))[0]
    return matrix
