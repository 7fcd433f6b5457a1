"""NumPy reference of the mixture-of-experts op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woolly.plan import Step
from woolly.runtime.reference.elements import apply_act, apply_glu
from woolly.runtime.reference.ops import Float32, OpContext, apply_linear, apply_rms_norm, reference, scaled

# Added to the divisor of the routing weights, since all sigmoids of a row may be 0.
_MIN_SUM = np.float32(1e-20)
# A round of the sparse mixer includes logits whose distance to the best one is at most this fraction of the larger
# magnitude: twice the router noise in training.
_REACH = np.float32(0.02)


def expert_weights(step: Step, logits: Float32, select: Float32 | None = None, given: Float32 | None = None) -> Float32:
    """Return the routing weight of each matrix for each row, or 0 if it is not chosen. Ties go to the lower index.

    `given` has the experts of each row if the router does not choose them.
    """
    if step.text("scoring") == "sparsemixer":
        return scaled(_mixed(logits, step.integer("n_used")), step.number("weights_scale"))
    if cap := step.number("cap"):
        logits = np.float32(cap) * np.tanh(logits / np.float32(cap))
    # exp of a large argument is inf, and 1 / inf is 0, the correct limit.
    with np.errstate(over="ignore"):
        if step.text("scoring") == "sigmoid":
            scores = np.float32(1) / (np.float32(1) + np.exp(-logits))
        elif step.text("scoring") == "sqrt_softplus":
            scores = np.sqrt(np.logaddexp(logits, np.float32(0)))
        else:
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
    # Logits have the same order as their scores, with fewer ties.
    ranks = logits if select is None else scores + select
    if groups := step.integer("groups"):
        parts = (scores if select is None else ranks).reshape(len(logits), groups, -1)
        sums = np.sort(parts, axis=2)[:, :, -step.integer("group_top") :].sum(axis=2)
        left_out = np.argsort(-sums, axis=1, kind="stable")[:, step.integer("groups_used") :]
        ranks = ranks.reshape(parts.shape).copy()
        np.put_along_axis(ranks, left_out[:, :, None], np.float32(-np.inf), axis=1)
        ranks = ranks.reshape(logits.shape)
    order = np.argsort(-ranks, axis=1, kind="stable")[:, : step.integer("n_used")]
    order = order if given is None else given.astype(np.int64)
    chosen = np.zeros_like(scores)
    # A table may list an expert twice, which then has twice the weight.
    np.add.at(chosen, (np.arange(len(scores))[:, None], order), np.take_along_axis(scores, order, axis=1))
    if step.integer("normalize"):
        chosen /= chosen.sum(axis=1, keepdims=True) + _MIN_SUM
    # Experts that share a matrix are merged, and their weights summed.
    chosen = chosen.reshape(len(logits), -1, step.integer("shared") or 1).sum(axis=2)
    return scaled(chosen, step.number("weights_scale"))


def _mixed(logits: Float32, n_used: int) -> Float32:
    """Return the weights of the sparse mixer: the best experts, each relative to the remaining similar ones."""
    chosen, left = np.zeros_like(logits), np.ones(logits.shape, np.bool_)
    order = np.argsort(-logits, axis=1, kind="stable")
    for turn in range(n_used):
        best = order[:, turn, None]
        top = np.take_along_axis(logits, best, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # two zeros are near each other
            is_far = (top - logits) / np.maximum(np.abs(logits), top) > _REACH
        shares = np.exp(np.where(left & ~is_far, logits - top, np.float32(-np.inf)))
        np.put_along_axis(chosen, best, np.float32(1) / shares.sum(axis=1, keepdims=True), axis=1)
        np.put_along_axis(left, best, False, axis=1)
    return chosen


@dataclass(frozen=True)
class ExpertRows:
    """Inputs and routing weights of one expert."""

    expert: int
    rows: NDArray[np.intp]  # batch rows routed to the expert
    x: Float32  # inputs of its first matrices
    hidden: Float32  # input of its last matrix
    shares: Float32  # routing weight of each row, multiplied with the result


def expert_rows(c: OpContext, step: Step, x: Float32, routed: Float32) -> Iterator[ExpertRows]:
    """Yield the experts with rows, by ascending index. `x` is normed, and the router reads `routed`."""
    names = _names(step)
    whole = {role: c.weights.get(names[role]) for role in ("bias", "select", "router") if role in names}
    given = c.weights.rows(names["table"], c.batch.tokens) if "table" in names else None
    logits = apply_linear(routed, whole["router"], whole.get("bias"))
    weights = expert_weights(step, logits, whole.get("select"), given)
    for expert in np.flatnonzero(weights.any(axis=0)):
        (rows,) = np.nonzero(weights[:, expert])
        shares = weights[rows, expert, None]
        ones = np.ones_like(shares)
        into, out = (shares, ones) if step.text("weigh") == "input" else (ones, shares)
        own = into * x[rows]
        wanted = _adapter_scales(c, rows, len(x))
        up = _linear(c, step, "up", int(expert), own, wanted)
        if "gate" in names:
            gate = _linear(c, step, "gate", int(expert), own, wanted)
            hidden = apply_glu(step.text("act"), gate, up, step.number("limit"))
        else:
            hidden = apply_act(step.text("act"), up)
        yield ExpertRows(int(expert), rows, own, hidden, out)


@reference("moe")
def moe(c: OpContext, step: Step, x: Float32, *others: Float32) -> Float32:
    """Apply the norm, the router, the chosen experts of each row in ascending order, then scale and residual."""
    names = _names(step)
    if "norm" in names:
        x = apply_rms_norm(x, c.weights.get(names["norm"]), step.number("eps"))
    has_residual = step.text("epilogue") == "residual"
    routed = others[0] if len(others) > has_residual else x
    y = np.zeros_like(x)
    for own in expert_rows(c, step, x, routed):
        wanted = _adapter_scales(c, own.rows, len(x))
        y[own.rows] += own.shares * _linear(c, step, "down", own.expert, own.hidden, wanted)
    if step.number("scale") != 1.0:
        y = scaled(y, step.number("scale"))
    return others[-1] + y if has_residual else y


def _names(step: Step) -> dict[str, str]:
    return {role: weight.name for role, weight in zip(step.roles, step.weights, strict=True)}


def _linear(c: OpContext, step: Step, role: str, expert: int, x: Float32, wanted: Float32 | None) -> Float32:
    """Multiply x by one expert's matrix and scale, add its bias and adapters."""
    names = _names(step)
    # All experts in f32 would take several times the size of the file.
    y = apply_linear(x, c.weights.rows(names[role], np.array([expert], np.int32))[0], None)
    if f"{role}_scale" in names:
        y = y * c.weights.get(names[f"{role}_scale"])[expert]
    if f"{role}_bias" in names:
        y = y + c.weights.get(names[f"{role}_bias"])[expert]
    for name in names:
        if name.startswith(f"{role}_a"):
            number = int(name.removeprefix(f"{role}_a"))
            a, b = (c.weights.get(names[f"{role}_{half}{number}"])[expert] for half in "ab")
            scales = np.ones((len(x), 1), np.float32) if wanted is None else wanted[:, number, None]
            times = scales * np.float32(step.number(f"factor{number}"))
            y = np.where(times == 0, y, y + times * apply_linear(apply_linear(x, a, None), b, None))
    return y


def _adapter_scales(c: OpContext, rows: NDArray[np.intp], n: int) -> Float32 | None:
    """Return the adapter scales [rows, adapters] of some of n rows, or None if all are 1."""
    if c.batch.adapters is None:
        return None
    scales: Float32 = np.repeat(c.batch.adapters, np.diff(c.batch.offsets), axis=0)
    if n != c.batch.n_rows:  # after the last layer, only some rows are computed
        scales = scales[c.batch.output_rows]
    return scales[rows]
