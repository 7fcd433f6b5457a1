"""Arguments of the KV cache store kernels, shared by all GPU backends."""

from __future__ import annotations

from woolly.plan import Step
from woolly.runtime.gpu.device import Address, Number
from woolly.runtime.gpu.emitter import Emitter
from woolly.runtime.gpu.state import room

_NONE = Address(0)


def store_arguments(e: Emitter, step: Step) -> tuple[Number, ...]:
    """Return the arguments of a `store` step: values, q/k norms, entry, q and KV heads, columns, rope."""
    q, k, *v = step.inputs
    index = step.integer("entry")
    entry = e.plan.paged[index]
    vectors = {role: e.vector(w) for role, w in zip(step.roles, step.weights, strict=True) if role != "divisors"}
    rope = step.rope()
    return (
        *(e.value(q), e.value(k), e.value(v[0]) if v else _NONE, e.value(step.output)),
        *(vectors.get("q_norm", _NONE), vectors.get("k_norm", _NONE)),
        *(index, e.width(q) // step.integer("head_dim"), entry.heads, entry.k_dim, entry.v_dim),
        *(room(entry.k_dim, e.kv_type), room(entry.v_dim, e.kv_type)),
        *(0 if rope is None else rope.n_rot, e.column(step), int(rope is not None and rope.style == "adjacent")),
        step.number("eps"),
    )
