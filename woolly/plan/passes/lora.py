"""LoRA adapters: low-rank updates of a model's matrices, with a scale per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from woolly.errors import ModelError
from woolly.plan.plan import Plan, Step, Value, Weight


@dataclass(frozen=True)
class LowRank:
    """LoRA pair of one matrix, or of all experts, which adds factor * b (a x)."""

    a: Weight  # [rank, columns of the matrix]; for experts [experts, rank, columns]
    b: Weight  # [rows of the matrix, rank]; for experts [experts, rows, rank]
    factor: float


def apply_lora(plan: Plan, adapters: Sequence[Mapping[str, LowRank]]) -> Plan:
    """Add the steps of adapters, each a mapping from tensor names to LoRA pairs.

    For each adapter of its tensor, a linear is followed by two low-rank linears and an `add_lora`, which adds their
    result times the sequence's scale in the batch. A `moe` step gets both matrices of each expert as weights. Raises
    ModelError for a tensor that is neither a linear nor an expert tensor of the plan.
    """
    values = list(plan.values)
    steps: list[Step] = []
    renamed: dict[int, int] = {}  # values of linears -> values after the adapters
    used: list[set[str]] = [set() for _ in adapters]

    def value(width: int, like: Value) -> int:
        values.append(Value(len(values), width, like.rows))
        return values[-1].id

    for step in plan.steps:
        step = replace(step, inputs=tuple(renamed.get(v, v) for v in step.inputs))
        if step.op == "moe":
            step = _with_low(step, adapters, used)
        steps.append(step)
        if step.op != "linear":
            continue
        matrix = step.weights[0]
        rows = matrix.name[len(matrix.tensor) :]  # "[first:last]" if the step reads only these rows of the tensor
        for index, adapter in enumerate(adapters):
            pair = adapter.get(matrix.tensor)
            if pair is None or len(pair.a.shape) != 2:
                continue
            used[index].add(matrix.tensor)
            out = renamed.get(step.output, step.output)
            shape = values[out]
            b = Weight(pair.b.name + rows, pair.b.type, (matrix.shape[0], pair.b.shape[1]))
            low, high, sum_ = value(pair.a.shape[0], shape), value(shape.width, shape), value(shape.width, shape)
            steps.append(replace(step, inputs=step.inputs, outputs=(low,), weights=(pair.a,)))
            steps.append(replace(step, inputs=(low,), outputs=(high,), weights=(b,)))
            attributes = (("adapter", index), ("factor", pair.factor))
            steps.append(Step("add_lora", (out, high), (sum_,), (), attributes, step.source))
            renamed[step.output] = sum_
    for adapter, found in zip(adapters, used, strict=True):
        if missing := sorted(adapter.keys() - found):
            raise ModelError(f"an adapter changes {missing[0]!r}, which is not a matrix that adapters support here")
    return replace(plan, steps=tuple(steps), values=tuple(values))


def _with_low(step: Step, adapters: Sequence[Mapping[str, LowRank]], used: Sequence[set[str]]) -> Step:
    """Add adapter pairs to an expert step, as roles such as "gate_a0" and "gate_b0", with their factors."""
    attributes, weights = dict(step.attributes), list(step.weights)
    roles = step.roles
    for role, matrix in zip(step.roles, step.weights, strict=True):
        # Not supported for gate and up in one tensor, whose LoRA pair cannot be split, and for experts that share
        # matrices.
        if role not in ("gate", "up", "down") or matrix.name != matrix.tensor or step.integer("shared"):
            continue
        for index, adapter in enumerate(adapters):
            pair = adapter.get(matrix.tensor)
            if pair is None or pair.a.shape[::2] != matrix.shape[::2] or pair.b.shape[:2] != matrix.shape[:2]:
                continue
            used[index].add(matrix.tensor)
            roles, weights = [*roles, f"{role}_a{index}", f"{role}_b{index}"], [*weights, pair.a, pair.b]
            if attributes.setdefault(f"factor{index}", pair.factor) != pair.factor:
                raise ModelError(f"an adapter has another rank for {matrix.tensor!r} than for other matrices")
    if len(weights) == len(step.weights):
        return step
    attributes["roles"] = " ".join(roles)
    return replace(step, weights=tuple(weights), attributes=tuple(attributes.items()))
