"""Emitters of mixture-of-experts layers: native/cuda/experts/moe.cu, moe_route.cu and moe_linears.py.

An entry is one (row, expert) pair. Entries of an expert are grouped into items: up to 8 entries in small batches, so
that kernels read each chosen expert once, and more in large batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.quant import GGMLType
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.ops.linear_arguments import NULL
from woolly.runtime.cuda.ops.moe_linears import (
    LARGE_ITEM_ROWS,
    MAX_SMALL_ROWS,
    ROW_ALIGNMENT,
    SMALL_ITEM_ROWS,
    ExpertInput,
    MoeStep,
    launch_down_gemv,
    launch_mma,
    launch_rows8_down,
    launch_rows8_glu,
    launch_rows8_up,
    launch_wgmma,
    launch_wgmma_glu,
    n_items,
    padded,
    prepared,
    vector,
)
from woolly.runtime.cuda.ops.rows import ACTIVATIONS
from woolly.runtime.cuda.weight_tiles import TILE_ROWS, tiles_of
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows

_SCORING = ("softmax", "sigmoid", "sparsemixer")
# Constants of the kernels.
_TOPK_ROWS = 4  # rows per top-k block
_ROUTER_EXPERTS = 8  # experts per router block
_OUTPUTS, _ROWS = 32, 8  # per block of router logits
_PERMUTE_ENTRIES = 8  # entries per block


@dataclass(frozen=True)
class _ProductOutput:
    """Output of a product, [entries][stride], with bias and scale not applied yet."""

    y: Address = NULL
    bias: Address = NULL
    scale: Address = NULL
    stride: int = 0


@emits("moe")
def _moe(e: Emitter, step: Step) -> None:
    if any(name.startswith("factor") for name, _ in step.attributes):
        raise UnsupportedError("the cuda backend does not support adapters of experts yet")
    weights = dict(zip(step.roles, step.weights, strict=True))
    n_experts, n_used, max_rows = weights["router"].shape[0], step.integer("n_used"), e.max_rows
    n_entries, is_wgmma = max_rows * n_used, e.device.kernels_for == 90
    n_places = n_entries + ROW_ALIGNMENT * n_experts
    router_args = (
        *(NULL if "select" not in weights else e.vector(weights["select"]), n_experts, n_used),
        *(_SCORING.index(step.text("scoring")), step.integer("normalize"), step.number("weights_scale")),
        *(step.integer("groups"), step.integer("groups_used"), step.integer("group_top")),
        *(step.number("cap"), step.integer("shared") or 1),
    )
    m = MoeStep(
        *(step, weights, e.kind(step.inputs[0]), n_experts, n_used, max_rows),
        experts=e.scratch("moe experts", 4 * n_entries),
        shares=e.scratch("moe shares", 4 * n_entries),
        members=e.scratch("moe members", 4 * n_places),
        items=e.scratch("moe items", 16 * (1 + n_items(n_entries, n_experts, SMALL_ITEM_ROWS))),
        max_abs=e.scratch("moe largests", 4 * n_entries),
        logits=e.scratch("moe logits", 4 * max_rows * n_experts),
        router_args=router_args,
        ready=e.array("moe ready", 4, lambda: np.zeros(1, np.uint32)),
        is_wgmma=is_wgmma,
        places=e.scratch("moe places", 4 * n_entries) if is_wgmma else NULL,
        place_inv_scales=e.scratch("moe place powers", 4 * n_places) if is_wgmma else NULL,
    )
    x = _rows(e, m)
    hidden = _glu(e, m, x)
    width, has_residual = e.width(step.output), step.text("epilogue") == "residual"
    residual = e.value(step.inputs[-1]) if has_residual else NULL
    last = (width, step.number("scale"), residual, e.value(step.output))
    n_gemv = launch_down_gemv(e, m, hidden, last)
    down = _product(e, m, "down", hidden, "moe down", least=n_gemv + 1)
    e.launch(
        *("moe_sum", (GridRows(m.kind), -(-width // 256)), 256),
        *(m.kind, n_used, m.experts, m.shares, int(m.weighs_input), down.y, down.bias, down.scale, down.stride, *last),
        least=n_gemv + 1,
        kind=m.kind,
        early=True,
    )


def _rows(e: Emitter, m: MoeStep) -> ExpertInput:
    """Launch norm, router and top-k, and return the rows as input of the expert products."""
    step = m.step
    x, width = e.value(step.inputs[0]), e.width(step.inputs[0])
    n_padded, norm = padded(width), m.weights.get("norm")
    numbers = x if norm is None else e.scratch("moe normed", 4 * m.max_rows * width)
    normed = NULL if norm is None else numbers
    x_f16, inv_scales = e.scratch("moe rows", 2 * m.max_rows * n_padded), e.scratch("moe row powers", 4 * m.max_rows)
    has_own = len(step.inputs) > 1 + (step.text("epilogue") == "residual")
    routed, n_routed = (e.value(step.inputs[1]), e.width(step.inputs[1])) if has_own else (numbers, width)
    router, bias = e.vector(m.weights["router"]), vector(e, m, "bias")
    how = (NULL if norm is None else e.vector(norm), step.number("eps"), width, n_padded)
    arrivals = e.array("moe arrivals", 4 * (1 + MAX_SMALL_ROWS), lambda: np.zeros(1 + MAX_SMALL_ROWS, np.uint32))
    needs_normed = any(weight.type == GGMLType.F32 for role, weight in m.weights.items() if role in ("gate", "up"))
    for least, most, n_each in m.small_ranges():
        e.launch(
            *(
                "moe_route",
                (-(-m.n_experts // _ROUTER_EXPERTS) + m.routes_in_products(most), GridRows(m.kind, n_each)),
                32 * _ROUTER_EXPERTS,
                m.kind,
                n_each,
                x,
                *how,
            ),
            *(normed if needs_normed else NULL, x_f16, inv_scales, routed if has_own else NULL, n_routed, router, bias),
            *(m.logits, *m.router_args, m.experts, m.shares, m.max_abs, SMALL_ITEM_ROWS, m.members, m.items, arrivals),
            m.ready if m.routes_in_products(most) else NULL,
            shared=4 * (-(-max(width, n_routed) // 4) * 4 + 3 * n_each * m.n_experts),
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
    out = ExpertInput(numbers, x_f16, inv_scales, width, m.n_used)
    if m.max_rows <= MAX_SMALL_ROWS:
        return out

    def launch(name: str, grid: tuple[int | GridRows, ...], block: int, *args: Argument, shared: int = 0) -> None:
        e.launch(name, grid, block, *args, shared=shared, least=MAX_SMALL_ROWS + 1, kind=m.kind, early=True)

    launch("moe_prepare", (GridRows(m.kind),), 256, m.kind, x, *how, normed, x_f16, inv_scales, shared=4 * width)
    grid = (-(-m.n_experts // _OUTPUTS), GridRows(m.kind, _ROWS))
    launch("moe_logits", grid, 256, m.kind, routed, n_routed, router, bias, m.logits, m.n_experts)
    args = (m.kind, m.logits, *m.router_args, m.experts, m.shares)
    shared = 12 * _TOPK_ROWS * m.n_experts
    launch("moe_topk", (GridRows(m.kind, _TOPK_ROWS),), 32 * _TOPK_ROWS, *args, shared=shared)
    for least, most, max_item_rows in (
        m.wgmma_ranges() if m.is_wgmma else ((MAX_SMALL_ROWS + 1, 1 << 30, LARGE_ITEM_ROWS),)
    ):
        e.launch(
            *("moe_sort", 1, 1024, m.kind, m.experts, m.n_experts, m.n_used, max_item_rows),
            *(ROW_ALIGNMENT if m.is_wgmma else 1, m.members, m.places, m.items),
            shared=8 * m.n_experts,
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
    if m.is_wgmma:
        spread = (width, n_padded, m.n_places, prepared(e, m, n_padded), m.place_inv_scales)
        launch("moe_permute", (GridRows(m.kind),), 256, m.kind, m.n_used, m.places, numbers, inv_scales, *spread)
    return out


def _glu(e: Emitter, m: MoeStep, x: ExpertInput) -> ExpertInput:
    """Launch gate, up and activation, and return the hidden rows, one per entry."""
    up, gate = m.weights["up"], m.weights.get("gate")
    n, n_padded = up.shape[1], padded(up.shape[1])
    out = ExpertInput(
        e.scratch("moe hidden", 4 * m.n_entries * n),
        e.scratch("moe hidden halves", 2 * m.n_entries * n_padded),
        e.scratch("moe hidden powers", 4 * m.n_entries),
        *(n, 1),
    )
    glu: tuple[Argument, ...] = (
        *(vector(e, m, role) for role in ("gate_bias", "gate_scale", "up_bias", "up_scale")),
        *(m.shares if m.weighs_input else NULL, ACTIVATIONS.index(m.step.text("act")), m.step.number("limit")),
    )
    gates, ups, is_paired, least = NULL, NULL, False, 0
    if gate is not None and gate.type == up.type != GGMLType.F32:
        tiles = tiles_of(e, gate, up)
        launch_rows8_glu(e, m, x, tiles, glu, out)
        if m.max_rows <= MAX_SMALL_ROWS:
            return out
        if m.is_wgmma:
            launch_wgmma_glu(e, m, tiles, glu, out)
            return out
        stride, is_paired, least = tiles.n_panels * TILE_ROWS, True, MAX_SMALL_ROWS + 1
        gates = ups = e.scratch("moe gate", 4 * m.n_entries * stride)
        launch_mma(e, m, x, tiles, gates)
    else:
        if gate is not None:
            gates = _product(e, m, "gate", x, "moe gate").y
        output = _product(e, m, "up", x, "moe up")
        ups, stride = output.y, output.stride
    e.launch(
        *("moe_activation", m.entries(), 256),
        *(m.kind, m.n_used, m.experts, gates, ups, *glu, int(is_paired), stride, n, n_padded),
        *(out.numbers, m.max_abs, out.x_f16, out.inv_scales),
        least=least,
        kind=m.kind,
        early=True,
    )
    return out


def _product(e: Emitter, m: MoeStep, role: str, x: ExpertInput, name: str, least: int = 0) -> _ProductOutput:
    """Launch the product of each entry with the matrix of its expert, for at least `least` rows."""
    weight = m.weights[role]
    bias, scale = vector(e, m, f"{role}_bias"), vector(e, m, f"{role}_scale")
    if weight.type == GGMLType.F32:
        n_out = weight.shape[1]
        stride = -(-n_out // TILE_ROWS) * TILE_ROWS
        y = e.scratch(name, 4 * m.n_entries * stride)
        e.launch(
            *("moe_f32", (m.entries(), -(-n_out // 8)), 256, m.kind, m.n_used, m.experts, x.numbers, x.per, x.width),
            *(e.raw(weight), y, n_out, stride),
            least=least,
            kind=m.kind,
            early=True,
        )
        return _ProductOutput(y, bias, scale, stride)
    tiles = tiles_of(e, weight)
    stride = tiles.n_panels * TILE_ROWS
    y = e.scratch(name, 4 * m.n_entries * stride)
    if role == "down":
        launch_rows8_down(e, m, x, tiles, y, least)
    else:
        launch_rows8_up(e, m, x, tiles, y)
    if not m.is_wgmma:
        launch_mma(e, m, x, tiles, y)
    elif m.max_rows > MAX_SMALL_ROWS:
        if role == "down":
            n_padded = padded(x.width)
            e.launch(
                *(
                    "moe_permute_hidden",
                    GridRows(m.kind, 1, -(-m.n_used // _PERMUTE_ENTRIES)),
                    256,
                    m.kind,
                    m.n_used,
                    m.places,
                    x.numbers,
                ),
                *(x.width, n_padded, m.n_places, prepared(e, m, n_padded), m.place_inv_scales),
                least=MAX_SMALL_ROWS + 1,
                kind=m.kind,
                early=True,
            )
        launch_wgmma(e, m, tiles, y)
    return _ProductOutput(y, bias, scale, stride)
