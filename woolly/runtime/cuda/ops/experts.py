"""Mixtures of experts: native/cuda/experts/moe.cu, moe_route.cu and the products of mixtures.py.

An entry is one expert of one row. Entries of an expert go together, in items: of up to 8 for few rows, whose kernels
read each chosen expert once, of more for many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woolly.errors import UnsupportedError
from woolly.plan import Step
from woolly.quant import GGMLType
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.ops.mixtures import (
    FEW_ITEM_ROWS,
    ITEM_ROWS,
    MAX_FEW_ROWS,
    PLACES_APART,
    Mixed,
    Mixture,
    few_hidden,
    few_pairs,
    few_rows,
    many_rows,
    n_items,
    one_summed,
    padded,
    prepared,
    vector,
    wide_pairs,
    wide_rows,
)
from woolly.runtime.cuda.ops.products import NULL
from woolly.runtime.cuda.ops.rows import ACTIVATIONS
from woolly.runtime.cuda.tiles import TILE_ROWS, tiles_of
from woolly.runtime.gpu.device import Address, Argument
from woolly.runtime.gpu.emit import Emitter, GridRows

_SCORING = ("softmax", "sigmoid", "sparsemixer")
# Constants of the kernels.
_CHOOSING = 4  # rows of a block that chooses
_ROUTED = 8  # experts of a block that routes
_OUTPUTS, _ROWS = 32, 8  # of a block that computes logits
_READY = 8  # entries of a block


@dataclass(frozen=True)
class _Given:
    """What a product gave: [entries][stride]."""

    y: Address = NULL
    bias: Address = NULL
    scale: Address = NULL
    stride: int = 0


@emits("moe")
def _moe(e: Emitter, step: Step) -> None:
    if any(name.startswith("factor") for name, _ in step.attributes):
        raise UnsupportedError("the cuda backend has no adapters of experts yet")
    weights = dict(zip(step.roles, step.weights, strict=True))
    n_experts, n_used, max_rows = weights["router"].shape[0], step.integer("n_used"), e.max_rows
    n_entries, is_wide = max_rows * n_used, e.device.kernels_for == 90
    n_places = n_entries + PLACES_APART * n_experts
    choice = (
        *(NULL if "select" not in weights else e.vector(weights["select"]), n_experts, n_used),
        *(_SCORING.index(step.text("scoring")), step.integer("normalize"), step.number("weights_scale")),
        *(step.integer("groups"), step.integer("groups_used"), step.integer("group_top")),
        *(step.number("cap"), step.integer("shared") or 1),
    )
    m = Mixture(
        *(step, weights, e.kind(step.inputs[0]), n_experts, n_used, max_rows),
        experts=e.scratch("moe experts", 4 * n_entries),
        shares=e.scratch("moe shares", 4 * n_entries),
        members=e.scratch("moe members", 4 * n_places),
        items=e.scratch("moe items", 16 * (1 + n_items(n_entries, n_experts, FEW_ITEM_ROWS))),
        largests=e.scratch("moe largests", 4 * n_entries),
        logits=e.scratch("moe logits", 4 * max_rows * n_experts),
        choice=choice,
        ready=e.array("moe ready", 4, lambda: np.zeros(1, np.uint32)),
        is_wide=is_wide,
        places=e.scratch("moe places", 4 * n_entries) if is_wide else NULL,
        place_backs=e.scratch("moe place powers", 4 * n_places) if is_wide else NULL,
    )
    x = _rows(e, m)
    hidden = _hidden(e, m, x)
    width, has_residual = e.width(step.output), step.text("epilogue") == "residual"
    residual = e.value(step.inputs[-1]) if has_residual else NULL
    last = (width, step.number("scale"), residual, e.value(step.output))
    n_summed = one_summed(e, m, hidden, last)
    down = _given(e, m, "down", hidden, "moe down", least=n_summed + 1)
    e.launch(
        *("moe_sum", (GridRows(m.kind), -(-width // 256)), 256),
        *(m.kind, n_used, m.experts, m.shares, int(m.weighs_input), down.y, down.bias, down.scale, down.stride, *last),
        least=n_summed + 1,
        kind=m.kind,
        early=True,
    )


def _rows(e: Emitter, m: Mixture) -> Mixed:
    """The step's rows, normed if it has a norm, and the experts of each."""
    step = m.step
    x, width = e.value(step.inputs[0]), e.width(step.inputs[0])
    n_padded, norm = padded(width), m.weights.get("norm")
    numbers = x if norm is None else e.scratch("moe normed", 4 * m.max_rows * width)
    normed = NULL if norm is None else numbers
    halves, backs = e.scratch("moe rows", 2 * m.max_rows * n_padded), e.scratch("moe row powers", 4 * m.max_rows)
    has_own = len(step.inputs) > 1 + (step.text("epilogue") == "residual")
    routed, n_routed = (e.value(step.inputs[1]), e.width(step.inputs[1])) if has_own else (numbers, width)
    router, bias = e.vector(m.weights["router"]), vector(e, m, "bias")
    how = (NULL if norm is None else e.vector(norm), step.number("eps"), width, n_padded)
    arrivals = e.array("moe arrivals", 4 * (1 + MAX_FEW_ROWS), lambda: np.zeros(1 + MAX_FEW_ROWS, np.uint32))
    needs_normed = any(weight.type == GGMLType.F32 for role, weight in m.weights.items() if role in ("gate", "up"))
    for least, most, n_each in m.few():
        e.launch(
            *(
                "moe_route",
                (-(-m.n_experts // _ROUTED) + m.is_chosen_late(most), GridRows(m.kind, n_each)),
                32 * _ROUTED,
                m.kind,
                n_each,
                x,
                *how,
            ),
            *(normed if needs_normed else NULL, halves, backs, routed if has_own else NULL, n_routed, router, bias),
            *(m.logits, *m.choice, m.experts, m.shares, m.largests, FEW_ITEM_ROWS, m.members, m.items, arrivals),
            m.ready if m.is_chosen_late(most) else NULL,
            shared=4 * (-(-max(width, n_routed) // 4) * 4 + 3 * n_each * m.n_experts),
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
    out = Mixed(numbers, halves, backs, width, m.n_used)
    if m.max_rows <= MAX_FEW_ROWS:
        return out

    def launch(name: str, grid: tuple[int | GridRows, ...], block: int, *args: Argument, shared: int = 0) -> None:
        e.launch(name, grid, block, *args, shared=shared, least=MAX_FEW_ROWS + 1, kind=m.kind, early=True)

    launch("moe_rows", (GridRows(m.kind),), 256, m.kind, x, *how, normed, halves, backs, shared=4 * width)
    grid = (-(-m.n_experts // _OUTPUTS), GridRows(m.kind, _ROWS))
    launch("moe_logits", grid, 256, m.kind, routed, n_routed, router, bias, m.logits, m.n_experts)
    args = (m.kind, m.logits, *m.choice, m.experts, m.shares)
    shared = 12 * _CHOOSING * m.n_experts
    launch("moe_choose", (GridRows(m.kind, _CHOOSING),), 32 * _CHOOSING, *args, shared=shared)
    for least, most, n_bundle in m.wide() if m.is_wide else ((MAX_FEW_ROWS + 1, 1 << 30, ITEM_ROWS),):
        e.launch(
            *("moe_group", 1, 1024, m.kind, m.experts, m.n_experts, m.n_used, n_bundle),
            *(PLACES_APART if m.is_wide else 1, m.members, m.places, m.items),
            shared=8 * m.n_experts,
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
    if m.is_wide:
        spread = (width, n_padded, m.n_places, prepared(e, m, n_padded), m.place_backs)
        launch("moe_spread", (GridRows(m.kind),), 256, m.kind, m.n_used, m.places, numbers, backs, *spread)
    return out


def _hidden(e: Emitter, m: Mixture, x: Mixed) -> Mixed:
    """What the experts' last matrices meet: a row for each entry."""
    up, gate = m.weights["up"], m.weights.get("gate")
    n, n_padded = up.shape[1], padded(up.shape[1])
    out = Mixed(
        e.scratch("moe hidden", 4 * m.n_entries * n),
        e.scratch("moe hidden halves", 2 * m.n_entries * n_padded),
        e.scratch("moe hidden powers", 4 * m.n_entries),
        *(n, 1),
    )
    between: tuple[Argument, ...] = (
        *(vector(e, m, role) for role in ("gate_bias", "gate_scale", "up_bias", "up_scale")),
        *(m.shares if m.weighs_input else NULL, ACTIVATIONS.index(m.step.text("act")), m.step.number("limit")),
    )
    gates, ups, is_paired, least = NULL, NULL, False, 0
    if gate is not None and gate.type == up.type != GGMLType.F32:
        tiles = tiles_of(e, gate, up)
        few_pairs(e, m, x, tiles, between, out)
        if m.max_rows <= MAX_FEW_ROWS:
            return out
        if m.is_wide:
            wide_pairs(e, m, tiles, between, out)
            return out
        stride, is_paired, least = tiles.n_panels * TILE_ROWS, True, MAX_FEW_ROWS + 1
        gates = ups = e.scratch("moe gate", 4 * m.n_entries * stride)
        many_rows(e, m, x, tiles, gates)
    else:
        if gate is not None:
            gates = _given(e, m, "gate", x, "moe gate").y
        given = _given(e, m, "up", x, "moe up")
        ups, stride = given.y, given.stride
    e.launch(
        *("moe_hidden", m.entries(), 256),
        *(m.kind, m.n_used, m.experts, gates, ups, *between, int(is_paired), stride, n, n_padded),
        *(out.numbers, m.largests, out.halves, out.backs),
        least=least,
        kind=m.kind,
        early=True,
    )
    return out


def _given(e: Emitter, m: Mixture, role: str, x: Mixed, name: str, least: int = 0) -> _Given:
    """The product of each entry with its expert's matrix, for `least` rows or more."""
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
        return _Given(y, bias, scale, stride)
    tiles = tiles_of(e, weight)
    stride = tiles.n_panels * TILE_ROWS
    y = e.scratch(name, 4 * m.n_entries * stride)
    if role == "down":
        few_hidden(e, m, x, tiles, y, least)
    else:
        few_rows(e, m, x, tiles, y)
    if not m.is_wide:
        many_rows(e, m, x, tiles, y)
    elif m.max_rows > MAX_FEW_ROWS:
        if role == "down":
            n_padded = padded(x.width)
            e.launch(
                *("moe_ready", GridRows(m.kind, 1, -(-m.n_used // _READY)), 256, m.kind, m.n_used, m.places, x.numbers),
                *(x.width, n_padded, m.n_places, prepared(e, m, n_padded), m.place_backs),
                least=MAX_FEW_ROWS + 1,
                kind=m.kind,
                early=True,
            )
        wide_rows(e, m, tiles, y)
    return _Given(y, bias, scale, stride)
