"""Names of steps, for hooks and `LLM.hidden`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.plan import Plan, Step
    from woolly.runtime import Program


def find_step(program: Program, name: str | int) -> int:
    """Return the index of a step in the running plan, by index, weight ("blk.3.ffn_norm") or layer ("blk.3").

    An index refers to the running plan. A weight names the output of the step that uses it in the model's plan; a layer
    names its last output. Raise RequestError if the backend fused this output away.
    """
    running = program.running_plan
    if isinstance(name, int) and not isinstance(name, bool):
        if not 0 <= name < len(running.steps):
            raise RequestError(f"step {name} does not exist; this plan has steps 0 to {len(running.steps) - 1}")
        if len(running.steps[name].outputs) != 1:
            raise _fused(running, name, f"step {name}")
        return name
    value = program.plan.steps[_index(program.plan, name)].output
    for index, step in enumerate(running.steps):
        if step.outputs == (value,):
            return index
    weight = f"{str(name).removesuffix('.weight')}.weight"
    index = next(i for i, step in enumerate(running.steps) if weight in (one.name for one in step.weights))
    raise _fused(running, index, repr(name))


def find_norm(program: Program, name: str | int) -> tuple[int, Step] | None:
    """Return the step that computes the input of a fused norm, and the norm; None if the norm is not fused."""
    if isinstance(name, int):
        return None
    norm = program.plan.steps[_index(program.plan, name)]
    steps = program.running_plan.steps
    if norm.op != "rms_norm" or any(step.outputs == norm.outputs for step in steps):
        return None
    # If the running plan selects output rows earlier, the norm reads the value before the selection.
    picks = [step for step in program.plan.steps if step.op == "output_rows" and step.outputs == norm.inputs]
    values = program.running_plan.values
    inputs = [norm.inputs, *(step.inputs for step in picks if values[step.inputs[0]].rows == "output")]
    return next(((i, norm) for i, step in enumerate(steps) if step.outputs in inputs), None)


def has_all_rows(program: Program, step: int) -> bool:
    """Return True if the model's plan computes the output of a step of the running plan for every token.

    A backend may skip rows that no request reads, unless the batch requests logits of all rows.
    """
    value, values = program.running_plan.steps[step].outputs[-1], program.plan.values
    return value < len(values) and values[value].rows == "batch"


def _index(plan: Plan, name: object) -> int:
    """Return the index of a step in the model's plan."""
    if not isinstance(name, str):
        raise RequestError(f"the step name is {name!r}; expected an index, a weight or a layer such as 'blk.3'")
    names: dict[str, int] = {}
    for index, layer in enumerate(plan.layers):
        if layer:
            names[layer] = index
    for index, step in enumerate(plan.steps):
        for weight in step.weights:
            names.setdefault(weight.name.removesuffix(".weight"), index)
    found = names.get(name.removesuffix(".weight"))
    if found is None:
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.4) or list(names)[:5]
        raise RequestError(
            f"unknown step {name!r}; did you mean one of {', '.join(near)}? (`woolly plan` prints all steps)"
        )
    return found


def _fused(plan: Plan, index: int, what: str) -> RequestError:
    step = plan.steps[index]
    makes = f"has {len(step.outputs)} outputs" if len(step.outputs) > 1 else "only computes a later value"
    weights = " ".join(weight.name for weight in step.weights)
    return RequestError(
        f"{what} is fused on this backend: step {index} ({step.op} {weights}) {makes}; name a layer, or use"
        " backend='reference', which does not fuse steps"
    )
