"""Selection of the output rows before, instead of after, the last matrix products."""

from __future__ import annotations

from dataclasses import replace

from woolly.plan.passes.rewrite import users
from woolly.plan.plan import Plan, Step


def prune_rows(plan: Plan) -> Plan:
    """Move `output_rows` to after the last step that mixes rows, such as attention, a scan or a convolution.

    For a prompt of 512 tokens, later steps then compute one row instead of 512, with bit-identical results. The plan is
    unchanged if other plans read all of its rows, as with parts, drafts and plans with drafts. It is also
    unchanged for towers, whose rows are nearly all output rows, and if the moved steps have no matrix.
    """
    has_readers = plan.is_part or plan.draft is not None or plan.features is not None
    if has_readers or not plan.n_tokens or any(step.op == "hidden" for step in plan.steps):
        return plan
    pruned = _prunable(plan)
    if not any(plan.steps[index].matrices for index in pruned):
        return plan
    values = list(plan.values)
    for index in pruned:
        for value in plan.steps[index].outputs:
            values[value] = replace(values[value], rows="output")
    entering = {value for index in pruned for value in plan.steps[index].inputs if values[value].rows == "batch"}
    steps: list[Step] = []
    made: list[int] = []  # values at the cut, not selected yet
    picked: dict[int, int] = {}  # values of all rows -> values of the output rows
    renamed: dict[int, int] = {}  # outputs of removed `output_rows` steps -> their inputs
    for index, step in enumerate(plan.steps):
        if step.op == "output_rows" and values[step.inputs[0]].rows == "output":
            renamed[step.output] = step.inputs[0]
            continue
        inputs = tuple(renamed.get(value, value) for value in step.inputs)
        if index in pruned:
            # Put all selections together, so that none separates steps that other passes merge.
            for value in made:
                picked[value] = len(values)
                values.append(replace(values[value], id=len(values), rows="output"))
                steps.append(Step("output_rows", (value,), (picked[value],), (), (), step.source))
            made.clear()
            inputs = tuple(picked.get(value, value) for value in inputs)
        steps.append(step if inputs == step.inputs else replace(step, inputs=inputs))
        made += (value for value in step.outputs if value in entering)
    result = plan.steps[-1].outputs[-1]
    if steps[-1].outputs[-1] != renamed.get(result, result):
        return plan  # the result would not be the last value any more
    return replace(plan, steps=tuple(steps), values=tuple(values))


def _prunable(plan: Plan) -> set[int]:
    """Return the indices of the steps after the last one that mixes rows, if only their output rows are read."""
    readers = users(plan)
    pruned: set[int] = set()

    def is_pruned(reader: int) -> bool:
        return reader in pruned or plan.steps[reader].op == "output_rows"

    for index in range(len(plan.steps) - 1, -1, -1):
        step = plan.steps[index]
        if any(plan.values[value].rows == "output" for value in step.outputs):
            continue
        # Experts from a token table are looked up by the row's index in the batch.
        if not step.kind.by_row or (step.op == "moe" and step.by_role("table")):
            break  # selecting here, too, would prevent merging with other steps that read the same input
        if all(readers[value] and all(map(is_pruned, readers[value])) for value in step.outputs):
            pruned.add(index)
    return pruned
