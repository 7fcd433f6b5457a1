"""q and k normed and turned, k and v stored: one step before attention reads the cache."""

from __future__ import annotations

from woolly.plan.passes.rewrite import rebuilt, users
from woolly.plan.plan import Attribute, Plan, Step, Weight
from woolly.plan.rope import Rope

__all__ = ["fuse_attention"]


def fuse_attention(plan: Plan) -> Plan:
    """Rope and attention (and the norms of q and k before them) -> store and attend."""
    made_by = {step.output: index for index, step in enumerate(plan.steps)}
    readers = users(plan)
    replaced: dict[int, tuple[Step, ...]] = {}

    def peel(value: int, op: str) -> tuple[int, Step | None]:
        """The input of the step `op` that makes the value for this attention alone; else the value itself."""
        index = made_by[value]
        step = plan.steps[index]
        if step.op != op or len(readers[value]) != 1:
            return value, None
        replaced[index] = ()
        return step.inputs[0], step

    for index, step in enumerate(plan.steps):
        if step.op != "attention":
            continue
        q, k, v = step.inputs
        rope: Rope | None = None
        weights: dict[str, Weight] = {}
        eps = 0.0
        ropes = [plan.steps[made_by[value]] for value in (q, k)]
        if ropes[0].op == ropes[1].op == "rope" and ropes[0].rope() == ropes[1].rope():
            q, q_rope = peel(q, "rope")
            k, _ = peel(k, "rope")
            if q_rope is not None:
                rope = q_rope.rope()
                if q_rope.weights:
                    weights["divisors"] = q_rope.weights[0]
            norms = [plan.steps[made_by[value]] for value in (q, k)]
            if all(n.op == "rms_norm" and n.weights[0].shape == (step.integer("head_dim"),) for n in norms):
                q, q_norm = peel(q, "rms_norm")
                k, k_norm = peel(k, "rms_norm")
                assert q_norm is not None and k_norm is not None
                weights = {"q_norm": q_norm.weights[0], "k_norm": k_norm.weights[0], **weights}
                eps = q_norm.number("eps")
        attributes: dict[str, Attribute] = {
            "roles": " ".join(weights),
            "rope": "" if rope is None else rope,
            "eps": eps,
            "layer": step.integer("layer"),
            "head_dim": step.integer("head_dim"),
        }
        # The turned q takes the place of the q that went in: same value, same width.
        turned = step.inputs[0]
        store = Step("store", (q, k, v), (turned,), tuple(weights.values()), tuple(attributes.items()), step.source)
        attend = Step("attend", (turned,), step.outputs, (), step.attributes, step.source)
        replaced[index] = (store, attend)
    return rebuilt(plan, replaced)
