"""NumPy reference of the fused ops, built from the plain ones."""

from __future__ import annotations

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.elements import apply_glu
from woolly.runtime.reference.ops import (
    Float32,
    OpContext,
    apply_linear,
    apply_rms_norm,
    apply_rope,
    reference,
    scaled,
    store_cache,
)


@reference("linears")
def linears(c: OpContext, step: Step, x: Float32, *residual: Float32) -> Float32 | tuple[Float32, ...]:
    """Apply a norm, each weight with its bias, a scale, then the epilogue."""
    outputs: list[Float32] = []
    for weight, role in zip(step.weights, step.roles, strict=True):
        array = c.weights.get(weight.name).reshape(weight.shape)
        if role == "norm":
            x = apply_rms_norm(x, array, step.number("eps"))
        elif role == "weight":
            outputs.append(apply_linear(x, array, None))
        else:
            outputs[-1] = outputs[-1] + array
    if step.number("scale") != 1.0:
        outputs = [scaled(y, step.number("scale")) for y in outputs]
    if step.text("epilogue").startswith("glu:"):
        gate, up = outputs
        return apply_glu(step.text("epilogue").removeprefix("glu:"), gate, up, step.number("limit"))
    if step.text("epilogue") == "residual":
        return residual[0] + outputs[0]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


@reference("add_lora")
def _add_lora(c: OpContext, step: Step, x: Float32, added: Float32) -> Float32:
    if c.batch.adapters is None:
        return x + scaled(added, step.number("factor"))
    scales = np.repeat(c.batch.adapters[:, step.integer("adapter")], np.diff(c.batch.offsets))
    if len(x) != c.batch.n_rows:  # after the last layer, only some rows are computed
        scales = scales[c.batch.output_rows]
    times = (scales * np.float32(step.number("factor")))[:, None]
    y: Float32 = np.where(times == 0, x, x + times * added)
    return y


@reference("store")
def store(c: OpContext, step: Step, q: Float32, k: Float32, *v: Float32) -> Float32:
    """Apply norm and rope to q and k per head, store k and v in the cache, and return q."""
    arrays = {role: c.weights.get(w.name) for role, w in zip(step.roles, step.weights, strict=True)}
    if "q_norm" in arrays:
        q = apply_rms_norm(q, arrays["q_norm"], step.number("eps"))
        k = apply_rms_norm(k, arrays["k_norm"], step.number("eps"))
    if "k_bias" in arrays:  # `attend` adds it
        k = k - arrays["k_bias"].reshape(-1)
    if rope := step.rope():
        q, k = (apply_rope(x, rope, arrays.get("divisors"), c.batch) for x in (q, k))
    store_cache(c, step.integer("entry"), k, *v)
    return q
