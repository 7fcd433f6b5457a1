"""The NumPy meaning of the fused ops, in terms of the plain ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from woolly.plan import Step
from woolly.runtime.reference_ops import (
    Context,
    Float32,
    apply_linear,
    apply_rms_norm,
    apply_rope,
    apply_swiglu,
    attend_cache,
    scaled,
    store_cache,
)

__all__ = ["FUSED_OPS"]


def _linears(c: Context, step: Step, x: Float32, *residual: Float32) -> Float32 | tuple[Float32, ...]:
    """Norm, each weight with its bias, scale, then the epilogue."""
    outputs: list[Float32] = []
    for weight, role in zip(step.weights, step.text("roles").split(), strict=True):
        array = c.weights.get(weight.name)
        if role == "norm":
            x = apply_rms_norm(x, array, step.number("eps"))
        elif role == "weight":
            outputs.append(apply_linear(x, array, None))
        else:
            outputs[-1] = outputs[-1] + array
    if step.number("scale") != 1.0:
        outputs = [scaled(y, step.number("scale")) for y in outputs]
    if step.text("epilogue") == "swiglu":
        return apply_swiglu(*outputs)
    if step.text("epilogue") == "residual":
        return residual[0] + outputs[0]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _store(c: Context, step: Step, q: Float32, k: Float32, v: Float32) -> Float32:
    """Q and k normed per head and turned; k and v into the cache."""
    arrays = {role: c.weights.get(w.name) for role, w in zip(step.text("roles").split(), step.weights, strict=True)}
    if "q_norm" in arrays:
        q = apply_rms_norm(q, arrays["q_norm"], step.number("eps"))
        k = apply_rms_norm(k, arrays["k_norm"], step.number("eps"))
    if rope := step.rope():
        q, k = (apply_rope(x, rope, arrays.get("divisors"), c.batch.positions) for x in (q, k))
    store_cache(c, step.integer("layer"), k, v)
    return q


FUSED_OPS: Mapping[str, Callable[..., Float32 | tuple[Float32, ...]]] = {
    "attend": attend_cache,
    "linears": _linears,
    "store": _store,
}
