"""Injection of image and audio embeddings in place of token embeddings."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import ModelError, UnsupportedError
from woolly.plan.plan import Plan, Step, Value

_PER_LAYER = "per_layer_token_embd.weight"  # a second table, of inputs of layers


def inject_embeddings(plan: Plan, width: int) -> Plan:
    """Return the plan with `scatter_rows` after its embedding, for rows of `width` columns.

    A scale of the embedding applies only to tokens unless `Plan.injection` says otherwise, so rows are injected after
    it. If `width` is a multiple of the embedding's width, the parts after the first are added to the outputs of the
    first layers, or where `Plan.injection` says.
    """
    # Per-layer embeddings are unchanged: image rows use the row of token 0, their placeholder.
    embeds = [step for step in plan.steps if step.op == "embed" and step.weights[0].tensor != _PER_LAYER]
    # N-gram embeddings need tokens, which images do not have.
    if len(embeds) != 1 or plan.result != "logits" or any(step.op == "ngrams" for step in plan.steps):
        raise UnsupportedError(f"{plan.architecture} models do not support images yet")
    if any(dict(step.attributes).get("alibi") for step in plan.steps):
        # Image rows may attend to later rows, but ALiBi tables cover only a few later positions.
        raise UnsupportedError(f"{plan.architecture} models with ALiBi do not support images")
    own = plan.values[embeds[0].output].width
    if width % own != 0:
        raise ModelError(
            f"the tower makes rows of {width} numbers, but the {plan.architecture} model has {own}: they belong to"
            " other models"
        )
    plan = replace(plan, steps=tuple(_masked(plan, step) for step in plan.steps))
    readers = [step for step in plan.steps if embeds[0].output in step.inputs]
    is_of_tokens = len(readers) == 1 and readers[0].op == "scale" and not plan.injection.is_scaled
    last = readers[0] if is_of_tokens else embeds[0]
    ends = {plan.steps.index(last): 0}
    for part, layer in _added_parts(plan, width // own):
        inside = [i for i, name in enumerate(plan.layers) if name == f"blk.{layer}"]
        if not inside:
            raise ModelError(
                f"the tower makes rows for {width // own - 1} layers, but the {plan.architecture} model has {layer}:"
                " they belong to other models"
            )
        ends[inside[-1]] = part
    values, steps = list(plan.values), list[Step]()
    renamed: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        steps.append(replace(step, inputs=tuple(renamed.get(v, v) for v in step.inputs)))
        if (part_of := ends.get(index)) is None:
            continue
        left = plan.values[step.output]
        values.append(Value(len(values), left.width, left.rows))
        attributes = (("part", part_of), ("adds", int(part_of > 0)))
        steps.append(Step("scatter_rows", (left.id,), (values[-1].id,), (), attributes, step.source))
        renamed[left.id] = values[-1].id
    return replace(plan, steps=tuple(steps), values=tuple(values))


def _added_parts(plan: Plan, n: int) -> list[tuple[int, int]]:
    """Return the parts of a row after the first, and the layer to whose output each is added."""
    if not (layers := plan.injection.layers):
        return [(part, part - 1) for part in range(1, n)]
    if n != max(layers) + 1:
        raise ModelError(
            f"the tower makes rows of {n} parts, but the {plan.architecture} model takes {max(layers) + 1}: they belong"
            " to other models"
        )
    return [(part, layer - 1) for layer, part in enumerate(layers) if part > 0]


def _masked(plan: Plan, step: Step) -> Step:
    """Return an attention step with the mask of image rows, which attend to each other unless they are causal."""
    causal = plan.injection.causal
    if step.op != "attention" or causal == "no" or (causal == "global layers" and step.integer("window")):
        return step
    return replace(step, attributes=tuple((k, "causal" if k == "mask" else v) for k, v in step.attributes))
