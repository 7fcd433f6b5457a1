"""The NumPy meaning of every op, in f32. Slow but right: the oracle of everything fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from woolly.errors import PlanError, RequestError, UnsupportedError
from woolly.gguf import Tensor
from woolly.plan import Plan, Step, rope_frequencies
from woolly.runtime.batch import Batch
from woolly.runtime.state import PAGE_SIZE, State
from woolly.runtime.weights import WeightStats, WeightStore

__all__ = ["REFERENCE_OPS", "ReferenceBackend", "ReferenceProgram"]

Float32 = npt.NDArray[np.float32]


class Context:
    """What an op may look at besides its inputs."""

    def __init__(self, weights: WeightStore, batch: Batch, state: State) -> None:
        self.weights = weights
        self.batch = batch
        self.state = state


def _embed(c: Context, step: Step) -> Float32:
    return c.weights.rows(step.weights[0].name, c.batch.tokens)


def _rms_norm(c: Context, step: Step, x: Float32) -> Float32:
    weight = c.weights.get(step.weights[0].name)
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    mean_square = np.mean(groups.astype(np.float64) ** 2, axis=-1, keepdims=True)
    scale = (1.0 / np.sqrt(mean_square + step.number("eps"))).astype(np.float32)
    y: Float32 = groups * scale * weight
    return y.reshape(x.shape)


def _linear(c: Context, step: Step, x: Float32) -> Float32:
    y: Float32 = x @ c.weights.get(step.weights[0].name).T
    if len(step.weights) == 2:
        y = y + c.weights.get(step.weights[1].name)
    return y


def _rope(c: Context, step: Step, x: Float32) -> Float32:
    rope = step.rope()
    divisors = c.weights.get(step.weights[0].name) if step.weights else None
    frequencies, magnitude = rope_frequencies(rope, divisors)
    angles = c.batch.positions.astype(np.float64)[:, None, None] * frequencies
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


def _attention(c: Context, step: Step, q: Float32, k: Float32, v: Float32) -> Float32:
    layer, head_dim = step.integer("layer"), step.integer("head_dim")
    keys, values = c.state.k[layer], c.state.v[layer]
    n_kv_heads = keys.shape[2]
    queries = q.reshape(len(q), n_kv_heads, -1, head_dim)  # rows, KV heads, query heads per KV head, head_dim
    out = np.empty_like(queries)
    for s in range(c.batch.n_sequences):
        rows = slice(c.batch.offsets[s], c.batch.offsets[s + 1])
        positions, pages = c.batch.positions[rows], c.batch.pages[s]
        at = pages[positions // PAGE_SIZE], positions % PAGE_SIZE
        keys[at] = k[rows].reshape(-1, n_kv_heads, head_dim)
        values[at] = v[rows].reshape(-1, n_kv_heads, head_dim)
        n_past = int(positions[-1]) + 1
        used = pages[: -(-n_past // PAGE_SIZE)]
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


def _swiglu(c: Context, step: Step, gate: Float32, up: Float32) -> Float32:
    # exp of a large positive argument is inf, and gate / inf is the right limit: 0.
    with np.errstate(over="ignore"):
        y: Float32 = gate / (np.float32(1) + np.exp(-gate)) * up
    return y


def _add(c: Context, step: Step, a: Float32, b: Float32) -> Float32:
    return a + b


def _scale(c: Context, step: Step, x: Float32) -> Float32:
    y: Float32 = x * np.float32(step.number("factor"))
    return y


def _output_rows(c: Context, step: Step, x: Float32) -> Float32:
    return x[c.batch.output_rows]


REFERENCE_OPS: Mapping[str, Callable[..., Float32]] = {
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


class ReferenceProgram:
    """Walks the plan step by step."""

    def __init__(self, plan: Plan, weights: WeightStore, threads: int | None) -> None:
        self.plan = plan
        self._weights = weights
        self._threads = threads
        self._values: dict[int, Float32] = {}
        self._last_use = {value: i for i, step in enumerate(plan.steps) for value in step.inputs}

    def new_state(self, n_pages: int) -> State:
        """An empty cache in f32."""
        return State(self.plan, n_pages, np.float32)

    def weight_stats(self) -> WeightStats:
        """What the weight store did so far."""
        return self._weights.stats()

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Steps `first` to `last` (exclusive); gives the value of the last step run."""
        last = len(self.plan.steps) if last is None else last
        if not 0 <= first < last <= len(self.plan.steps):
            raise PlanError(f"steps {first} to {last} are not a part of a plan of {len(self.plan.steps)} steps")
        if first == 0:
            self._values.clear()
        context = Context(self._weights, batch, state)
        with self._thread_limit():
            for index in range(first, last):
                step = self.plan.steps[index]
                if missing := [f"v{value}" for value in step.inputs if value not in self._values]:
                    raise PlanError(f"step {index} needs {missing[0]}, which no earlier run left; start further ahead")
                inputs = [self._values[value] for value in step.inputs]
                self._values[step.output] = REFERENCE_OPS[step.op](context, step, *inputs)
                for value in step.inputs:
                    if self._last_use[value] == index:
                        self._values.pop(value, None)
        return self._values[self.plan.steps[last - 1].output]

    def _thread_limit(self) -> AbstractContextManager[object]:
        return nullcontext() if self._threads is None else threadpool_limits(self._threads, user_api="blas")


class ReferenceBackend:
    """NumPy in f32, weights dequantized on first use."""

    name = "reference"

    def compile(
        self, plan: Plan, tensors: Mapping[str, Tensor], *, threads: int | None, weight_memory: int | None
    ) -> ReferenceProgram:
        """Nothing is computed yet: weights are read when a step needs them."""
        if threads is not None and threads < 1:
            raise RequestError(f"threads is {threads}, but at least 1 is needed")
        for weight in plan.weights.values():
            if not weight.type.can_dequantize:
                raise UnsupportedError(f"tensor {weight.name!r} is {weight.type.name}, which is not supported yet")
        return ReferenceProgram(plan, WeightStore(tensors, weight_memory), threads)
