"""Mixtures of experts: native/cuda/moe.cu and moe_products.cu.

An entry is one expert of one row. For few rows each entry reads the matrices of its expert, so that only chosen experts
are read; for many rows the entries of an expert go together. Both give an entry the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime.cuda.emit import Address, Emitter, Rows, emits
from woolly.runtime.cuda.ops.rows import ACTIVATIONS
from woolly.runtime.cuda.tiles import TILE_COLUMNS, TILE_ROWS, Tiles, tiles_of

__all__: list[str] = []

_NULL = Address(0)
_SCORING = ("softmax", "sigmoid", "sparsemixer")
# Constants of the kernels.
_FEW_STRIPS, _MANY_STRIPS = 2, 4  # of a block
_ITEM_ROWS = 64
_CHOOSING = 4  # rows of a block that chooses
_FEW = 8  # the most rows whose entries are taken one by one
# Most rows of each launch for many: the grid has blocks for as many items as there may be.
_MANY = (64, 512, 1 << 30)


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

    @property
    def n_entries(self) -> int:
        return self.max_rows * self.n_used

    def entries(self) -> Rows:
        """A dimension of a grid."""
        return Rows(self.kind, 1, self.n_used)


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
    )
    x = _rows(e, m)
    _choose(e, m, x)
    hidden = _hidden(e, m, x)
    down = _given(e, m, "down", hidden, "moe down")
    width, has_residual = e.width(step.output), step.text("epilogue") == "residual"
    e.launch(
        *("moe_sum", (Rows(m.kind), -(-width // 256)), 256),
        *(m.kind, n_used, m.experts, m.shares, int(step.text("weigh") == "input"), down.y, down.bias, down.scale),
        *(down.stride, width, step.number("scale"), e.value(step.inputs[-1]) if has_residual else _NULL),
        e.value(step.output),
        kind=m.kind,
        early=True,
    )


def _rows(e: Emitter, m: _Mixture) -> _Input:
    """The step's rows, normed if it has a norm."""
    x, width = e.value(m.step.inputs[0]), e.width(m.step.inputs[0])
    padded, norm = _padded(width), m.weights.get("norm")
    numbers = x if norm is None else e.scratch("moe normed", 4 * m.max_rows * width)
    halves, backs = e.scratch("moe rows", 2 * m.max_rows * padded), e.scratch("moe row powers", 4 * m.max_rows)
    e.launch(
        *("moe_rows", Rows(m.kind), 256, m.kind, x, _NULL if norm is None else e.vector(norm)),
        *(m.step.number("eps"), width, padded, numbers, halves, backs),
        kind=m.kind,
        early=True,
    )
    return _Input(numbers, halves, backs, width, m.n_used)


def _choose(e: Emitter, m: _Mixture, x: _Input) -> None:
    """Logits, the experts of each row and, for many rows, the rows of each expert."""
    step = m.step
    has_own = len(step.inputs) > 1 + (step.text("epilogue") == "residual")
    routed, width = (e.value(step.inputs[1]), e.width(step.inputs[1])) if has_own else (x.numbers, x.width)
    logits = e.scratch("moe logits", 4 * m.max_rows * m.n_experts)
    e.launch(
        *("moe_logits", (-(-m.n_experts // 8), Rows(m.kind, 8)), 256, m.kind, routed, width),
        *(e.vector(m.weights["router"]), _vector(e, m, "bias"), logits, m.n_experts),
        kind=m.kind,
        early=True,
    )
    e.launch(
        *("moe_choose", Rows(m.kind, _CHOOSING), 32 * _CHOOSING),
        *(m.kind, logits, _vector(e, m, "select"), m.n_experts, m.n_used, _SCORING.index(step.text("scoring"))),
        *(step.integer("normalize"), step.number("weights_scale")),
        *(step.integer("groups"), step.integer("groups_used"), step.integer("group_top"), m.experts, m.shares),
        shared=12 * _CHOOSING * m.n_experts,
        kind=m.kind,
        early=True,
    )
    e.launch(
        *("moe_group", 1, 512, m.kind, m.experts, m.n_experts, m.n_used, m.members, m.items),
        shared=8 * m.n_experts,
        least=_FEW + 1,
        kind=m.kind,
        early=True,
    )


def _hidden(e: Emitter, m: _Mixture, x: _Input) -> _Input:
    """What the experts' last matrices meet: a row for each entry."""
    up, gate = m.weights["up"], m.weights.get("gate")
    n, padded = up.shape[1], _padded(up.shape[1])
    is_paired = gate is not None and gate.type == up.type != GGMLType.F32
    if is_paired:
        first = _given(e, m, "gate", x, "moe gate", paired="up")
        second = _Given(_NULL, _vector(e, m, "up_bias"), _vector(e, m, "up_scale"), first.stride)
    else:
        first = _Given() if gate is None else _given(e, m, "gate", x, "moe gate")
        second = _given(e, m, "up", x, "moe up")
    out = _Input(
        e.scratch("moe hidden", 4 * m.n_entries * n),
        e.scratch("moe hidden halves", 2 * m.n_entries * padded),
        e.scratch("moe hidden powers", 4 * m.n_entries),
        *(n, 1),
    )
    e.launch(
        *("moe_hidden", m.entries(), 256, m.kind, m.n_used, m.experts, m.shares),
        *(int(m.step.text("weigh") == "input"), first.y, first.bias, first.scale, second.y, second.bias, second.scale),
        *(int(is_paired), second.stride, ACTIVATIONS.index(m.step.text("act")), m.step.number("limit"), n, padded),
        *(out.numbers, out.halves, out.backs),
        kind=m.kind,
        early=True,
    )
    return out


def _given(e: Emitter, m: _Mixture, role: str, x: _Input, name: str, paired: str | None = None) -> _Given:
    """The product of each entry with its expert's matrix, or with two in pairs of rows."""
    weight = m.weights[role]
    bias, scale = _vector(e, m, f"{role}_bias"), _vector(e, m, f"{role}_scale")
    if weight.type == GGMLType.F32:
        n_out = weight.shape[1]
        stride = -(-n_out // TILE_ROWS) * TILE_ROWS
        y = e.scratch(name, 4 * m.n_entries * stride)
        e.launch(
            *("moe_f32", (m.entries(), -(-n_out // 8)), 256, m.kind, m.n_used, m.experts, x.numbers, x.per, x.width),
            *(e.raw(weight), y, n_out, stride),
            kind=m.kind,
            early=True,
        )
        return _Given(y, bias, scale, stride)
    tiles = tiles_of(e, weight, None if paired is None else m.weights[paired])
    stride = tiles.n_strips * TILE_ROWS
    y = e.scratch(name, 4 * m.n_entries * stride)
    # Between the choice of experts and their last matrices other kernels run: these need not wait to know them.
    _products(e, m, x, tiles, y, is_known=role == "down")
    return _Given(y, bias, scale, stride)


def _products(e: Emitter, m: _Mixture, x: _Input, tiles: Tiles, y: Address, is_known: bool) -> None:
    last = (x.halves, x.backs, x.per, tiles.address, tiles.stride // 16, tiles.n_strips, tiles.n_tiles, y)
    e.launch(
        *(f"moe_few__{tiles.kind}", (m.entries(), -(-tiles.n_strips // _FEW_STRIPS)), 256),
        *(m.kind, m.n_used, m.experts, *last, int(is_known)),
        most=_FEW,
        kind=m.kind,
        early=True,
    )
    least = _FEW + 1
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
    return min(n_entries, n_experts + n_entries // _ITEM_ROWS)


def _padded(n_columns: int) -> int:
    return -(-n_columns // TILE_COLUMNS) * TILE_COLUMNS


def _vector(e: Emitter, m: _Mixture, role: str) -> Address:
    return e.vector(m.weights[role]) if role in m.weights else _NULL
