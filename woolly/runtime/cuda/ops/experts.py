"""Mixtures of experts: native/cuda/moe.cu, moe_route.cu and the products.

An entry is one expert of one row. Entries of an expert go together, in items: of up to 8 for few rows, whose kernels
read each chosen expert once, of more for many. All give an entry the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime.cuda.device import Argument
from woolly.runtime.cuda.emit import Address, Emitter, Rows, emits
from woolly.runtime.cuda.ops.products import tile_bytes
from woolly.runtime.cuda.ops.rows import ACTIVATIONS
from woolly.runtime.cuda.tiles import TILE_COLUMNS, TILE_ROWS, Tiles, tiles_of

__all__: list[str] = []

_NULL = Address(0)
_SCORING = ("softmax", "sigmoid", "sparsemixer")
# Constants of the kernels.
_MANY_STRIPS = 4  # of a block
_ITEM_ROWS = 64
_CHOOSING = 4  # rows of a block that chooses
_ROUTED = 8  # experts of a block that routes
_APART, _FINISHED = 20, 4
# Few rows: those of each launch at most, and how many a block takes that routes them.
_FEW = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 2), (64, 4))
_MOST_FEW = 64
_FEW_ITEM_ROWS = 8
_WARPS = 16
# Tiles that a warp has under way, and those of them that it asks for before the rows.
_STAGES, _EARLY = 4, 2
# Most rows of each launch for many: the grid has blocks for as many items as there may be.
_MANY = (512, 1 << 30)


@dataclass(frozen=True)
class _Mixture:
    """What all launches of a step share."""

    step: Step
    weights: dict[str, Weight]
    kind: int
    n_experts: int
    n_used: int
    max_rows: int
    experts: Address  # of each entry
    shares: Address  # its weight
    members: Address  # entries in the order of their experts
    items: Address
    largests: Address  # magnitudes of what stands between the products

    @property
    def n_entries(self) -> int:
        return self.max_rows * self.n_used

    @property
    def weighs_input(self) -> bool:
        """Whether rows are weighed before the products, not after them."""
        return self.step.text("weigh") == "input"

    def entries(self) -> Rows:
        """A dimension of a grid."""
        return Rows(self.kind, 1, self.n_used)

    def few(self) -> Iterator[tuple[int, int, int]]:
        """Least and most rows of each launch for few, and rows of a block that routes."""
        least = 0
        for most, n_each in _FEW:
            if least <= self.max_rows:
                yield least, most, n_each
            least = most + 1


@dataclass(frozen=True)
class _Input:
    """Rows that matrices meet, as numbers and halved; the row of an entry is the entry divided by `per`."""

    numbers: Address
    halves: Address
    backs: Address
    width: int
    per: int


@dataclass(frozen=True)
class _Given:
    """What a product gave: [entries][stride]."""

    y: Address = _NULL
    bias: Address = _NULL
    scale: Address = _NULL
    stride: int = 0


@emits("moe")
def _moe(e: Emitter, step: Step) -> None:
    weights = dict(zip(step.roles, step.weights, strict=True))
    n_experts, n_used, max_rows = weights["down"].shape[0], step.integer("n_used"), e.max_rows
    n_entries = max_rows * n_used
    m = _Mixture(
        *(step, weights, e.kind(step.inputs[0]), n_experts, n_used, max_rows),
        experts=e.scratch("moe experts", 4 * n_entries),
        shares=e.scratch("moe shares", 4 * n_entries),
        members=e.scratch("moe members", 4 * n_entries),
        items=e.scratch("moe items", 16 * (1 + _items(n_entries, n_experts))),
        largests=e.scratch("moe largests", 4 * n_entries),
    )
    x = _rows(e, m)
    hidden = _hidden(e, m, x)
    width, has_residual = e.width(step.output), step.text("epilogue") == "residual"
    residual = e.value(step.inputs[-1]) if has_residual else _NULL
    last = (width, step.number("scale"), residual, e.value(step.output))
    n_summed = _one(e, m, hidden, last)
    down = _given(e, m, "down", hidden, "moe down", least=n_summed + 1)
    e.launch(
        *("moe_sum", (Rows(m.kind), -(-width // 256)), 256),
        *(m.kind, n_used, m.experts, m.shares, int(m.weighs_input), down.y, down.bias, down.scale, down.stride, *last),
        least=n_summed + 1,
        kind=m.kind,
        early=True,
    )


def _rows(e: Emitter, m: _Mixture) -> _Input:
    """The step's rows, normed if it has a norm, and the experts of each."""
    step = m.step
    x, width = e.value(step.inputs[0]), e.width(step.inputs[0])
    padded, norm = _padded(width), m.weights.get("norm")
    numbers = x if norm is None else e.scratch("moe normed", 4 * m.max_rows * width)
    halves, backs = e.scratch("moe rows", 2 * m.max_rows * padded), e.scratch("moe row powers", 4 * m.max_rows)
    logits = e.scratch("moe logits", 4 * m.max_rows * m.n_experts)
    has_own = len(step.inputs) > 1 + (step.text("epilogue") == "residual")
    routed, n_routed = (e.value(step.inputs[1]), e.width(step.inputs[1])) if has_own else (numbers, width)
    router, bias = e.vector(m.weights["router"]), _vector(e, m, "bias")
    normed = (_NULL if norm is None else e.vector(norm), step.number("eps"), width, padded)
    choice = (
        *(_vector(e, m, "select"), m.n_experts, m.n_used, _SCORING.index(step.text("scoring"))),
        *(step.integer("normalize"), step.number("weights_scale")),
        *(step.integer("groups"), step.integer("groups_used"), step.integer("group_top")),
    )
    arrivals = e.array("moe arrivals", 4 * (1 + _MOST_FEW), lambda: np.zeros(1 + _MOST_FEW, np.uint32))
    for least, most, n_each in m.few():
        e.launch(
            *("moe_route", (-(-m.n_experts // _ROUTED), Rows(m.kind, n_each)), 32 * _ROUTED, m.kind, n_each, x),
            *(*normed, _NULL if norm is None else numbers, halves, backs, routed if has_own else _NULL, n_routed),
            *(router, bias, logits, *choice, m.experts, m.shares, m.largests, _FEW_ITEM_ROWS, m.members, m.items),
            arrivals,
            shared=4 * (-(-max(width, n_routed) // 4) * 4 + 3 * n_each * m.n_experts),
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
    many = {"least": _MOST_FEW + 1, "kind": m.kind}
    if m.max_rows > _MOST_FEW:
        e.launch("moe_rows", Rows(m.kind), 256, m.kind, x, *normed, numbers, halves, backs, early=True, **many)
        grid = (-(-m.n_experts // 8), Rows(m.kind, 8))
        args = (routed, n_routed, router, bias, logits, m.n_experts)
        e.launch("moe_logits", grid, 256, m.kind, *args, early=True, **many)
        e.launch(
            *("moe_choose", Rows(m.kind, _CHOOSING), 32 * _CHOOSING, m.kind, logits, *choice, m.experts, m.shares),
            shared=12 * _CHOOSING * m.n_experts,
            early=True,
            **many,
        )
        e.launch(
            *("moe_group", 1, 512, m.kind, m.experts, m.n_experts, m.n_used, _ITEM_ROWS, 1, m.members, m.items),
            shared=8 * m.n_experts,
            early=True,
            **many,
        )
    return _Input(numbers, halves, backs, width, m.n_used)


def _hidden(e: Emitter, m: _Mixture, x: _Input) -> _Input:
    """What the experts' last matrices meet: a row for each entry."""
    up, gate = m.weights["up"], m.weights.get("gate")
    n, padded = up.shape[1], _padded(up.shape[1])
    out = _Input(
        e.scratch("moe hidden", 4 * m.n_entries * n),
        e.scratch("moe hidden halves", 2 * m.n_entries * padded),
        e.scratch("moe hidden powers", 4 * m.n_entries),
        *(n, 1),
    )
    between = (
        *(_vector(e, m, role) for role in ("gate_bias", "gate_scale", "up_bias", "up_scale")),
        *(m.shares if m.weighs_input else _NULL, ACTIVATIONS.index(m.step.text("act")), m.step.number("limit")),
    )
    first, least = _Given(), 0
    if gate is not None and gate.type == up.type != GGMLType.F32:
        tiles = tiles_of(e, gate, up)
        least = _few_pairs(e, m, x, tiles, between, out) + 1
        first = second = _given(e, m, "gate", x, "moe gate", paired="up", least=least)
    else:
        if gate is not None:
            first = _given(e, m, "gate", x, "moe gate")
        second = _given(e, m, "up", x, "moe up")
    if least <= m.max_rows:
        e.launch(
            *("moe_hidden", m.entries(), 256, m.kind, m.n_used, m.experts, first.y, second.y, *between),
            *(int(first is second), second.stride, n, padded, out.numbers, m.largests, out.halves, out.backs),
            least=least,
            kind=m.kind,
            early=True,
        )
    return out


def _given(
    e: Emitter, m: _Mixture, role: str, x: _Input, name: str, paired: str | None = None, least: int = 0
) -> _Given:
    """The product of each entry with its expert's matrix, or with two in pairs of rows, for `least` rows or more."""
    weight = m.weights[role]
    bias, scale = _vector(e, m, f"{role}_bias"), _vector(e, m, f"{role}_scale")
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
    tiles = tiles_of(e, weight, None if paired is None else m.weights[paired])
    stride = tiles.n_strips * TILE_ROWS
    y = e.scratch(name, 4 * m.n_entries * stride)
    if role == "down":
        _few(e, m, "hidden", tiles, (x.numbers, m.largests, x.width, y), TILE_ROWS, least)
    elif paired is None:
        _few(e, m, "rows", tiles, (x.halves, x.backs, m.n_used, y), TILE_ROWS, least)
    _many(e, m, x, tiles, y)
    return _Given(y, bias, scale, stride)


def _few_pairs(
    e: Emitter, m: _Mixture, x: _Input, tiles: Tiles, between: tuple[Argument, ...], out: _Input
) -> int:
    """Gate and up of few rows, and what stands between; the most rows."""
    args = (x.halves, x.backs, m.n_used, *between, out.width, out.numbers, m.largests)
    down = m.weights["down"]
    later: tuple[Argument, ...] = (_NULL, 0, 0)
    if down.type != GGMLType.F32:
        there = tiles_of(e, down)
        later = (there.address, there.stride // 16, there.stride)
    _few(e, m, "pairs", tiles, args, TILE_ROWS // 2, 0, later)
    return _MOST_FEW


def _few(
    e: Emitter,
    m: _Mixture,
    name: str,
    tiles: Tiles,
    args: tuple[Argument, ...],
    n_each: int,
    first: int,
    later: tuple[Argument, ...] = (),
) -> None:
    """Launches for few rows, `first` or more. `n_each`: numbers of a strip and row that are finished."""
    n_slices, n_bytes = min(tiles.n_tiles, 16), tile_bytes(tiles)
    for least, most, _ in m.few():
        if most < first:
            continue
        n_group = min(most, _FEW_ITEM_ROWS)
        n_warps, n_held, n_stages = _form(e, n_slices, n_bytes, n_group, n_each)
        n_items = min(most, m.max_rows) * m.n_used
        is_one = most == 1
        e.launch(
            *(f"moe_few_{name}__{tiles.kind}", min(e.device.n_processors, n_items * tiles.n_strips), 32 * n_warps),
            *(m.items, m.members, m.n_used if is_one else 0, n_group, n_held, n_stages, min(n_stages, _EARLY)),
            *(tiles.address, tiles.stride // 16, tiles.n_strips, tiles.n_tiles, *args),
            *(later if is_one else (_NULL, 0, 0) if later else ()),
            shared=_few_shared(n_slices, n_bytes, n_group, n_warps, n_held, n_stages),
            least=max(least, first),
            most=most,
            kind=m.kind,
            early=True,
        )


def _form(e: Emitter, n_slices: int, n_bytes: int, n_group: int, n_each: int) -> tuple[int, int, int]:
    """Warps of a block, strips of a round and tiles that a warp has under way: what shared memory holds."""
    for n_warps in (_WARPS, 8, 4, 2, 1):
        at_once = max(1, n_warps // n_slices)
        for n_held in (max(at_once, 8 // at_once * at_once), at_once):
            if n_held * n_each * n_group > _FINISHED * 32 * n_warps:
                continue
            for n_stages in range(_STAGES, 1 if n_warps > 1 else 0, -1):
                if _few_shared(n_slices, n_bytes, n_group, n_warps, n_held, n_stages) <= e.device.shared_bytes:
                    return n_warps, n_held, n_stages
    raise AssertionError("a tile fits shared memory")


def _few_shared(n_slices: int, n_bytes: int, n_group: int, n_warps: int, n_held: int, n_stages: int) -> int:
    return 2048 + 2 * n_held * n_slices * n_group * _APART * 4 + n_warps * n_stages * n_bytes


def _one(e: Emitter, m: _Mixture, x: _Input, last: tuple[Argument, ...]) -> int:
    """The last product of one row with the sum over its experts, if there is room for it; the most rows: 1 or 0."""
    weight = m.weights["down"]
    if weight.type == GGMLType.F32:
        return 0
    tiles = tiles_of(e, weight)
    n_slices, n_bytes = min(tiles.n_tiles, 16), tile_bytes(tiles)
    n_units = m.n_used * n_slices
    n_warps = min(-(-n_units // -(-n_units // 24)), 24)
    n_stages = min(4, -(-m.n_used * tiles.n_tiles // n_warps))
    fixed = 3072 + 64 * (n_units + m.n_used) + m.n_used * tiles.n_tiles * 512
    n_stages = min(n_stages, (e.device.shared_bytes - fixed) // (n_warps * n_bytes))
    if n_stages < 1:
        return 0
    e.launch(
        *(f"moe_one__{tiles.kind}", tiles.n_strips, 32 * n_warps, m.n_used, m.experts),
        *(tiles.address, tiles.stride // 16, tiles.n_strips, tiles.n_tiles, n_stages, x.numbers, m.largests, x.width),
        *(_NULL if m.weighs_input else m.shares, _vector(e, m, "down_bias"), _vector(e, m, "down_scale"), *last),
        shared=fixed + n_warps * n_stages * n_bytes,
        most=1,
        kind=m.kind,
        early=True,
    )
    return 1


def _many(e: Emitter, m: _Mixture, x: _Input, tiles: Tiles, y: Address) -> None:
    """Launches for many rows."""
    last = (x.halves, x.backs, x.per, tiles.address, tiles.stride // 16, tiles.n_strips, tiles.n_tiles, y)
    least = _MOST_FEW + 1
    for most in _MANY:
        if least > m.max_rows:
            break
        n_items = _items(min(most, m.max_rows) * m.n_used, m.n_experts)
        e.launch(
            *(f"moe_many__{tiles.kind}", (n_items, -(-tiles.n_strips // _MANY_STRIPS)), 128),
            *(m.members, m.items, *last),
            least=least,
            most=most,
            kind=m.kind,
            early=True,
        )
        least = most + 1


def _items(n_entries: int, n_experts: int) -> int:
    """The most items that entries may make: each expert may have one that is not full."""
    return min(n_entries, n_experts + n_entries // _FEW_ITEM_ROWS)


def _padded(n_columns: int) -> int:
    return -(-n_columns // TILE_COLUMNS) * TILE_COLUMNS


def _vector(e: Emitter, m: _Mixture, role: str) -> Address:
    return e.vector(m.weights[role]) if role in m.weights else _NULL
