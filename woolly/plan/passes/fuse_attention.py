"""Fuses norm, rope and cache store into one step before attention or an indexer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.plan.passes.rewrite import rebuilt, users
from woolly.plan.plan import Attribute, Plan, Step, Weight

if TYPE_CHECKING:
    from woolly.plan.rope_scaling import Rope

_CHOICE = ("chosen", "block")  # attributes only for attention to chosen positions


def fuse_attention(plan: Plan) -> Plan:
    """Replace rope and attention (and norms of q and k) with store and attend, an indexer with store and index_topk."""
    made_by = {step.output: index for index, step in enumerate(plan.steps)}
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}

    def makers(*values: int) -> list[Step]:
        """Return the steps that compute the values, if every value has a single reader."""
        return [plan.steps[made_by[v]] for v in values] if all(len(readers[v]) == 1 for v in values) else []

    def peel(value: int) -> int:
        """Drop the step that computes the value (fused into the store) and return its input."""
        replaced[made_by[value]] = ()
        return plan.steps[made_by[value]].inputs[0]

    for index, step in enumerate(plan.steps):
        if step.op not in ("attention", "indexer"):
            continue
        # Besides q, the reading step has the last input: the chosen positions, or the weights of an index.
        is_choice, has_chosen = step.op == "indexer", step.op == "attention" and step.integer("chosen") > 0
        n_stored = 2 if is_choice else len(step.inputs) - has_chosen
        inputs = (*step.inputs[:1], *step.inputs[n_stored:])
        own = step.attributes if is_choice or has_chosen else tuple(x for x in step.attributes if x[0] not in _CHOICE)
        read = Step("index_topk" if is_choice else "attend", inputs, step.outputs, step.weights, own, step.source)
        if n_stored == 1:  # attention over keys and values that another step stores
            replaced[index] = (read,)
            continue
        q, k, *v = step.inputs[:n_stored]
        rope: Rope | None = None
        weights: dict[str, Weight] = {}
        eps = 0.0
        ropes = makers(q, k)
        if ropes and all(s.op == "rope" for s in ropes) and len({(s.attributes, s.weights) for s in ropes}) == 1:
            q, k = peel(q), peel(k)
            rope = ropes[0].rope()
            if ropes[0].weights:
                weights["divisors"] = ropes[0].weights[0]
            norms, heads = makers(q, k), [(step.integer("head_dim"),)]
            is_normed = norms and all(s.op == "rms_norm" and [w.shape for w in s.weights] == heads for s in norms)
            if is_normed and norms[0].number("eps") == norms[1].number("eps"):
                q, k = peel(q), peel(k)
                weights = {"q_norm": norms[0].weights[0], "k_norm": norms[1].weights[0], **weights}
                eps = norms[0].number("eps")
        attributes: dict[str, Attribute] = {
            "roles": " ".join(weights),
            "rope": "" if rope is None else rope,
            "eps": eps,
            "entry": step.integer("entry"),
            "head_dim": step.integer("head_dim"),
        }
        # The rotated q replaces the input q, with the same value id and width.
        turned = step.inputs[0]
        store = Step("store", (q, k, *v), (turned,), tuple(weights.values()), tuple(attributes.items()), step.source)
        # Another part may read the result of a part.
        is_read = bool(readers[step.output]) or step is plan.steps[-1] or plan.is_part
        replaced[index] = (store, read) if is_read else (store,)
    return rebuilt(plan, replaced)
