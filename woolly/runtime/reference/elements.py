"""NumPy reference of the element-wise ops: activations, gates, products."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.ops import Float32, OpContext, reference


def _sigmoid(x: Float32) -> Float32:
    y: Float32 = np.float32(1) / (np.float32(1) + np.exp(-x))
    return y


def _gelu(x: Float32) -> Float32:
    """Return GELU in the tanh form: x times the sigmoid of twice its argument."""
    inner = np.float32(-2 * math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    y: Float32 = x / (np.float32(1) + np.exp(inner))
    return y


_ACTS: dict[str, Callable[[Float32], Float32]] = {
    "silu": lambda x: x / (np.float32(1) + np.exp(-x)),
    "gelu": _gelu,
    "gelu_erf": lambda x: (x * 0.5 * (1.0 + np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2)))).astype(
        x.dtype
    ),
    "gelu_quick": lambda x: x / (np.float32(1) + np.exp(np.float32(-1.702) * x)),
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "relu2": lambda x: np.maximum(x, np.float32(0)) ** 2,
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "tanh": np.tanh,
    "exp": np.exp,
    "root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(x), np.float32(1e-6))),
}


def apply_act(kind: str, x: Float32) -> Float32:
    """Apply an activation to each element."""
    # exp of a large positive argument is inf, and x / inf is 0, the correct limit.
    with np.errstate(over="ignore"):
        return _ACTS[kind](x)


def apply_glu(act: str, gate: Float32, up: Float32, limit: float = 0.0) -> Float32:
    """Return act(gate) * up, with both limited to ±`limit` unless it is 0."""
    if limit:
        most = np.float32(limit)
        if act == "clipped":
            return apply_act("silu", np.minimum(gate, most)) * np.clip(up, -most, most)
        bounded: Float32 = np.minimum(apply_act(act, gate), most) * np.clip(up, -most, most)
        return bounded
    if act != "clamped":
        return apply_act(act, gate) * up
    most, slope = np.float32(7), np.float32(1.702)
    gate, up = np.minimum(gate, most), np.clip(up, -most, most)
    with np.errstate(over="ignore"):
        y: Float32 = gate / (np.float32(1) + np.exp(-slope * gate)) * (up + np.float32(1))
    return y


@reference("glu")
def _glu(c: OpContext, step: Step, gate: Float32, up: Float32) -> Float32:
    return apply_glu(step.text("act"), gate, up, step.number("limit"))


@reference("unary")
def _unary(c: OpContext, step: Step, x: Float32) -> Float32:
    return apply_act(step.text("kind"), x)


@reference("xielu")
def _xielu(c: OpContext, step: Step, x: Float32) -> Float32:
    alpha_p, alpha_n, beta, eps = (np.float32(step.number(name)) for name in ("alpha_p", "alpha_n", "beta", "eps"))
    bent = np.where(x > 0, alpha_p * x * x, alpha_n * (np.expm1(np.minimum(x, eps)) - x))
    y: Float32 = bent + beta * x
    return y


@reference("softcap")
def _softcap(c: OpContext, step: Step, x: Float32) -> Float32:
    cap = np.float32(step.number("cap"))
    y: Float32 = cap * np.tanh(x / cap)
    return y


@reference("clamp")
def _clamp(c: OpContext, step: Step, x: Float32) -> Float32:
    limit = np.float32(step.number("limit"))
    return np.clip(x, -limit, limit)


@reference("clip")
def _clip(c: OpContext, step: Step, x: Float32) -> Float32:
    return np.clip(x, np.float32(step.number("low")), np.float32(step.number("high")))


@reference("mul")
def _mul(c: OpContext, step: Step, a: Float32, b: Float32) -> Float32:
    return a * np.repeat(b, a.shape[1] // b.shape[1], axis=1)


@reference("slice")
def _slice(c: OpContext, step: Step, x: Float32) -> Float32:
    runs = x.reshape(len(x), step.integer("groups"), -1)
    return runs[:, :, step.integer("first") : step.integer("last")].reshape(len(x), -1)


@reference("mul_weight")
def _mul_weight(c: OpContext, step: Step, x: Float32) -> Float32:
    weight = np.repeat(c.weights.get(step.weights[0].name).reshape(-1), max(1, step.integer("run")))
    return (x.reshape(len(x), -1, len(weight)) * weight).reshape(x.shape)


@reference("add_weight")
def _add_weight(c: OpContext, step: Step, x: Float32) -> Float32:
    weight = c.weights.get(step.weights[0].name).reshape(-1)
    return (x.reshape(len(x), -1, len(weight)) + weight).reshape(x.shape)


@reference("vecdot")
def _vecdot(c: OpContext, step: Step, a: Float32, b: Float32) -> Float32:
    y: Float32 = (a * b).reshape(len(a), -1, step.integer("group")).sum(axis=-1)
    return y


@reference("lerp")
def _lerp(c: OpContext, step: Step, a: Float32, b: Float32) -> Float32:
    weight = c.weights.get(step.weights[0].name).reshape(-1, a.shape[1])
    y: Float32 = (a[:, None] + (b - a)[:, None] * weight).reshape(len(a), -1)
    return y


@reference("concat")
def _concat(c: OpContext, step: Step, a: Float32, b: Float32) -> Float32:
    heads = step.integer("heads")
    shape = (len(b), heads, -1)
    parts = np.repeat(b[:, None], heads, axis=1) if step.integer("shared") else b.reshape(shape)
    return np.concatenate([a.reshape(shape), parts], axis=2).reshape(len(a), -1)
