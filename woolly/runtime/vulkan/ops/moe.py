"""Mixture of experts: routing, expert products and the weighted sum. Kernels: native/gpu/experts."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.plan import Step, Weight
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Emitter, GridRows
from woolly.runtime.vulkan.emitters import emits
from woolly.runtime.vulkan.ops.linears import MAX_FEW_ROWS, InputRows, Product, Routes, normed, products
from woolly.runtime.vulkan.ops.rows import activation, elements

_SCORINGS = ("softmax", "sigmoid", "sparsemixer", "sqrt_softplus")
_NONE = Address(0)
# Maximum experts and experts per row, and threads per group, as in native/gpu/experts.
_MAX_EXPERTS, _MAX_USED = 1024, 64
_THREADS, _ORDER_THREADS = 64, 256


@emits("moe")
def _moe(e: Emitter, step: Step) -> None:
    if any(name.startswith("factor") for name, _ in step.attributes):
        raise UnsupportedError("Vulkan and Metal do not support adapters of experts yet")
    weights = dict(zip(step.text("roles").split(), step.weights, strict=True))
    vectors = {role: e.vector(w) for role, w in weights.items() if role.endswith(("bias", "scale", "select"))}
    n_experts, n_used = weights["router"].shape[0], step.integer("n_used")
    if n_experts > _MAX_EXPERTS or n_used > _MAX_USED:
        raise UnsupportedError(
            f"Vulkan and Metal have no kernels for {n_used} of {n_experts} experts: up to {_MAX_USED} of {_MAX_EXPERTS}"
        )
    rows = normed(e, step)
    kind, ffn, width = rows.kind, weights["up"].shape[1], e.width(step.output)
    n_inputs = len(step.inputs) - (step.text("epilogue") == "residual")
    own = step.inputs[1] if n_inputs > 1 else None
    routed = rows if own is None else InputRows(e.value(own), e.kind(own), e.width(own))
    logits = e.scratch("experts logits", 4 * e.max_rows * n_experts)
    products(e, routed, [Product(weights["router"], logits, vectors.get("bias", _NONE))])
    n_slots = e.max_rows * n_used
    chosen, shares, order = (e.scratch(f"experts {name}", 4 * n_slots) for name in ("chosen", "shares", "order"))
    n_matrices = weights["up"].shape[0]
    firsts = e.scratch("experts firsts", 4 * (n_matrices + 1))
    table = _table(e, weights["table"], n_experts) if "table" in weights else _NONE
    _route(e, step, kind, n_experts, table, logits, vectors.get("select", _NONE), chosen, shares)
    e.launch(
        *("experts_order", (1,), _ORDER_THREADS, chosen, order, firsts, kind, n_matrices, n_used),
        least=MAX_FEW_ROWS + 1,
        kind=kind,
    )
    is_weighed = step.text("weigh") == "input"
    n_alike = max(1, step.integer("shared"))  # consecutive experts may share a matrix
    routes = Routes(chosen, order, firsts, n_used, n_used, shares if is_weighed else _NONE, n_alike)

    def product(role: str, y: Address) -> Product:
        bias, scale = (vectors.get(f"{role}_{what}", _NONE) for what in ("bias", "scale"))
        return Product(weights[role], y, bias, scales=scale)

    up = e.scratch("experts up", 4 * n_slots * ffn)
    gate = e.scratch("experts gate", 4 * n_slots * ffn) if "gate" in weights else None
    pairs = [("up", up)] if gate is None else [("gate", gate), ("up", up)]
    products(e, rows, [product(role, y) for role, y in pairs], routes)
    # The slots of a row are contiguous, so they form one row of n_used * ffn columns.
    numbers = (n_used * ffn, kind, activation(step.text("act")), 0, 0, step.number("limit"))
    if gate is None:
        elements(e, "unary", kind, n_used * ffn, up, _NONE, up, *numbers)
    else:
        elements(e, "glu", kind, n_used * ffn, gate, up, up, *numbers)
    parts = e.scratch("experts parts", 4 * n_slots * width)
    inner = Routes(chosen, order, firsts, n_used, 1, n_alike=n_alike)
    products(e, InputRows(up, kind, n_used * ffn), [product("down", parts)], inner)
    residual = e.value(step.inputs[-1]) if step.text("epilogue") == "residual" else _NONE
    args = (parts, _NONE if is_weighed else shares, residual, e.value(step.output), width, kind, n_used)
    grid = (-(-width // _THREADS), GridRows(kind))
    e.launch("experts_combine", grid, _THREADS, *args, step.number("scale"), kind=kind)


def _table(e: Emitter, weight: Weight, n_experts: int) -> Address:
    """Return the address of the expert ids per token, after checking that all ids exist."""
    experts = e.views[weight.name].dequantize()
    if weight.shape[0] < e.plan.n_tokens or not ((experts >= 0) & (experts < n_experts)).all():
        raise UnsupportedError(f"Vulkan and Metal have no table of experts such as {weight.name}: some are not there")
    return e.vector(weight)


def _route(e: Emitter, step: Step, kind: int, n_experts: int, table: Address, *places: Address) -> None:
    """Route rows to experts. `places`: logits, selection bias, output ids and output weights."""
    args = (
        *(*places, kind, n_experts, step.integer("n_used")),
        *(step.integer(name) for name in ("groups", "groups_used", "group_top")),
        *(_SCORINGS.index(step.text("scoring")), step.integer("normalize"), max(1, step.integer("shared"))),
        *(step.number("weights_scale"), step.number("cap"), table),
    )
    e.launch("experts_route", (GridRows(kind),), _THREADS, *args, kind=kind)
