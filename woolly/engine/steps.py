"""Names of steps: where hooks and `LLM.hidden` read what a model computes on its way."""

from __future__ import annotations

import difflib
import re

from woolly.errors import RequestError
from woolly.plan import Plan, Step
from woolly.runtime import Program

__all__ = ["find_step", "running_plan"]


def running_plan(program: Program) -> Plan:
    """The steps that the program walks: the cpu backend's are fused."""
    plan = getattr(program, "fused", program.plan)
    assert isinstance(plan, Plan)
    return plan


def find_step(plan: Plan, name: str | int) -> int:
    """The step of that number, of that weight ("blk.3.ffn_down"), or the last one of a layer ("blk.3").

    Numbers and weights are those that `woolly plan` prints, with --fused where the cpu backend runs. The value is what
    the whole step makes: a fused step with a residual gives the sum.
    """
    steps = plan.steps
    if isinstance(name, int) and not isinstance(name, bool):
        if not 0 <= name < len(steps):
            raise RequestError(f"step {name} does not exist; this plan has steps 0 to {len(steps) - 1}")
        return _single(name, steps[name])
    if not isinstance(name, str):
        raise RequestError(f"a step is named by {name!r}; a number, a weight or a layer such as 'blk.3' was expected")
    names: dict[str, int] = {}
    for index, layer in enumerate(_layers(steps)):
        if layer is not None:
            names[layer] = index
    for index, step in enumerate(steps):
        for weight in step.weights:
            names.setdefault(weight.name.removesuffix(".weight"), index)
    index_of = names.get(name.removesuffix(".weight"))
    if index_of is None:
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.4) or list(names)[:5]
        raise RequestError(f"no step is named {name!r}; near it are {', '.join(near)} (`woolly plan` prints all)")
    return _single(index_of, steps[index_of])


def _layers(steps: tuple[Step, ...]) -> list[str | None]:
    """The layer of each step; one without weights belongs to the layer before it, but for what leaves the last."""
    out: list[str | None] = []
    for step in steps:
        found = next((m[0] for w in step.weights if (m := re.match(r"blk\.\d+", w.name))), None)
        inherits = not step.weights and step.op != "output_rows" and out
        out.append(out[-1] if inherits and found is None else found)
    return out


def _single(index: int, step: Step) -> int:
    if len(step.outputs) != 1:
        weights = " ".join(weight.name for weight in step.weights)
        raise RequestError(
            f"step {index} ({step.op} {weights}) makes {len(step.outputs)} values at once; name another, or use"
            " backend='reference', where each has a step of its own"
        )
    return index
