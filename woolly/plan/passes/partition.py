"""Splitting of a plan between layers, for several processes or devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from woolly.errors import RequestError, UnsupportedError
from woolly.plan.plan import Plan, Step, Weight
from woolly.plan.state import Paged, Slot


def split_points(plan: Plan) -> list[int]:
    """Return the steps before which a plan may be split: later steps then need exactly one earlier value, for all rows.

    The result includes 0. A part returns the value of its last step, so that step must compute the value. Steps that
    compute the values of a draft (`Plan.features`) do not. The op that receives the value needs a norm of the same
    width.
    """
    made: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        last_use |= dict.fromkeys(step.inputs, index)
        made |= dict.fromkeys(step.outputs, index)
    alive: list[list[int]] = [[] for _ in plan.steps]
    for value, index in made.items():
        for at in range(index + 1, last_use.get(value, index) + 1):
            alive[at].append(value)
    last_norm = {w.shape[0]: at for at, step in enumerate(plan.steps) for w in step.weights if len(w.shape) == 1}

    def is_possible(at: int) -> bool:
        values = [plan.values[value] for value in alive[at]]
        if [value.rows for value in values] != ["batch"] or values[0].id not in plan.steps[at - 1].outputs:
            return False
        return last_norm.get(values[0].width, -1) >= at

    return [0, *(at for at in range(1, len(plan.steps)) if is_possible(at))]


def layer_split_points(plan: Plan) -> dict[int, int]:
    """Return the index of the first step of each layer that a part may begin with, by layer number.

    Later steps then need exactly one earlier value, for all rows, and no state entry is used on both sides.
    """
    uses = [index for index, step in enumerate(plan.steps) if "entry" in dict(step.attributes)]
    layers = plan.layers
    out: dict[int, int] = {}
    for at in split_points(plan)[1:]:
        if not layers[at] or layers[at] == layers[at - 1] or layers[at] in layers[:at]:
            continue
        before, after = ({plan.steps[i].integer("entry") for i in uses if (i < at) is side} for side in (True, False))
        if not before & after:
            out[_number(layers[at])] = at
    return out


def layer_bytes(plan: Plan) -> list[int]:
    """Return the weight bytes of each layer. The first includes the embedding, the last the output head."""
    layer, seen = 0, set[tuple[int, str]]()
    out = [0] * _count(plan)
    for step, name in zip(plan.steps, plan.layers, strict=True):
        if name:
            layer = _number(name)
        for weight in step.weights:
            if (layer, weight.name) not in seen:
                seen.add((layer, weight.name))
                out[layer] += weight.n_bytes
    return out


def balance_layers(plan: Plan, memory: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last layer of each part, with weights in proportion to `memory`.

    Raises RequestError if too few layers can begin a part.
    """
    possible = sorted(layer_split_points(plan).keys() - {0})
    n_parts = len(memory)
    if len(possible) < n_parts - 1:
        what = f"can be cut into at most {len(possible) + 1} parts" if possible else "cannot be cut"
        raise RequestError(
            f"{n_parts} stages are given, but this {plan.architecture} model {what}: a part holds whole layers that"
            " share nothing with others but one value",
            field="stages",
            limit=len(possible) + 1,
            given=n_parts,
        )
    sizes = layer_bytes(plan)
    first, edges = 0, [0]
    for part in range(1, n_parts):
        wanted = sum(sizes) * sum(memory[:part]) / max(1, sum(memory))
        left = possible[first : len(possible) - (n_parts - 1 - part)]
        edge = min(left, key=lambda layer: (abs(sum(sizes[:layer]) - wanted), layer))
        first = possible.index(edge) + 1
        edges.append(edge)
    return [(a, b - 1) for a, b in zip(edges, [*edges[1:], _count(plan)], strict=True)]


def slice_layers(plan: Plan, first: int, last: int) -> Plan:
    """Return the part of a plan from layer `first` to `last`, with the embedding or the head if it is at that end.

    A part without the first layer begins with the input rows of the batch (`hidden`). Values and state entries keep
    their numbers. Entries of other parts take no memory.
    """
    n_layers = _count(plan)
    possible = layer_split_points(plan) | {0: 0, n_layers: len(plan.steps)}
    if not 0 <= first <= last < n_layers or first not in possible or last + 1 not in possible:
        raise RequestError(f"layers {first} to {last} of {n_layers} are no part of a {plan.architecture} model")
    return slice_steps(plan, [(possible[first], possible[last + 1])])


def slice_steps(plan: Plan, ranges: Sequence[tuple[int, int]]) -> Plan:
    """Return the steps of some ranges (first, last exclusive). Each range must begin at one of `split_points`.

    A range that does not start at step 0 begins with one extra step, the input rows of the batch (`hidden`). Values and
    state entries keep their numbers. Entries of other parts take no memory.
    """
    steps: list[Step] = []
    for begin, end in ranges:
        steps += [_entrance(plan, begin)] if begin else []
        steps += plan.steps[begin:end]
    own = {step.integer("entry") for step in steps if "entry" in dict(step.attributes)}
    state = tuple(entry if i in own else _emptied(entry) for i, entry in enumerate(plan.state))
    return replace(plan, steps=tuple(steps), state=state, draft=None, is_part=True)


def merge_parts(plan: Plan, parts: Sequence[Sequence[Step]]) -> Plan:
    """Return the plan with the fused steps of all parts, without their entrance steps."""
    steps = [step for i, part in enumerate(parts) for step in part[1 if i else 0 :]]
    return replace(plan, steps=tuple(steps), draft=None)


def _number(layer: str) -> int:
    return int(layer.rpartition(".")[2])


def _count(plan: Plan) -> int:
    """Return the number of layers, including empty ones."""
    return 1 + max((_number(layer) for layer in plan.layers if layer), default=0)


def _entrance(plan: Plan, at: int) -> Step:
    """Return the entrance step, which reads the one value that steps from `at` on need from the batch."""
    made = {value for step in plan.steps[:at] for value in step.outputs}
    (value,) = {value for step in plan.steps[at:] for value in step.inputs} & made
    width = plan.values[value].width
    weights: list[Weight] = [weight for step in plan.steps[at:] for weight in step.weights if weight.shape == (width,)]
    if not weights:
        raise UnsupportedError(
            f"this {plan.architecture} model cannot be cut: no norm has the width of the values to pass on"
        )
    # The op needs a norm weight but does not use it (`Batch.is_hidden_normed`), so any weight of the part will do.
    return Step("hidden", (), (value,), (weights[0],), (("eps", 0.0),), plan.steps[at].source)


def _emptied(entry: Paged | Slot) -> Paged | Slot:
    return replace(entry, heads=0) if isinstance(entry, Paged) else Slot(0)
