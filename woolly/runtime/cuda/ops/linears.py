"""Products of rows and matrices: which kernels compute them, for few rows and for many.

All variants give a row the same bits (native/cuda/linears.cuh), so the choice is of speed alone. Few rows are bound by
the reading of weights, many by tensor cores; between them the work is cut so that all multiprocessors have a share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from woolly.errors import UnsupportedError
from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime.cuda.emit import Address, Emitter, Rows, emits
from woolly.runtime.cuda.ops.rows import ACTIVATIONS
from woolly.runtime.cuda.tiles import Tiles, tiles_of

__all__: list[str] = []

_EPILOGUES = {"none": 0, "residual": 1, "glu": 2}
_NULL = Address(0)

# Constants of linear_row.cu and linear_wide.cu.
_WARPS = 16
_ROW_FIXED = 2048 + 2 * 16 * 16 * 16 * 4  # barriers, reductions and sums
# Bytes of tiles under way to a multiprocessor that keep memory busy. More delay the rows that a kernel waits for.
_UNDER_WAY = 72 << 10
# A single row: columns that the registers of a block hold, of the shorter kind and of the longer; tiles that a warp
# has under way, and those that it asks for before the row, which waits behind them.
_SHORT, _LONGEST = 4096, 14336
_ONE_STAGES, _ONE_EARLY = 2, 1
# Rows that the kernels of many rows take at once.
_WIDE = (16, 32, 64, 128)
_MANY = (16, 64)


@dataclass(frozen=True)
class _Product:
    """One matrix of a step: its weight, its bias, and where its rows go."""

    weight: Weight
    bias: Address
    y: Address

    @property
    def n_rows(self) -> int:
        return self.weight.shape[-2]


@dataclass(frozen=True)
class _Finish:
    """What follows the sums: arguments FINISH of the kernels."""

    residual: Address = _NULL
    epilogue: int = 0
    gate: int = 0
    limit: float = 0.0
    scale: float = 1.0

    @property
    def args(self) -> tuple[Address | int | float, ...]:
        return (self.residual, self.epilogue, self.gate, self.limit, self.scale)


@dataclass(frozen=True)
class _Input:
    """The rows that matrices are multiplied with."""

    x: Address
    kind: int
    n_columns: int  # of a matrix
    norm: Address = _NULL
    eps: float = 0.0
    heads: int = 1

    @property
    def n_tiles(self) -> int:
        return -(-self.n_columns // 256)


@emits("linear", "linears")
def _linears(e: Emitter, step: Step) -> None:
    attributes = dict(step.attributes)
    epilogue = str(attributes.get("epilogue", "none"))
    scale = float(step.number("scale")) if "scale" in attributes else 1.0
    norm = step.by_role("norm")
    rows = _Input(
        e.value(step.inputs[0]),
        e.kind(step.inputs[0]),
        e.width(step.inputs[0]),
        e.vector(norm[0]) if norm else _NULL,
        step.number("eps") if norm else 0.0,
    )
    pairs: list[tuple[Weight, Address]] = []
    for weight, role in zip(step.weights, step.roles, strict=True):
        if role == "weight":
            pairs.append((weight, _NULL))
        elif role == "bias":
            pairs[-1] = (pairs[-1][0], e.vector(weight))
    if epilogue.startswith("glu:"):
        _gated(e, rows, pairs, step, ACTIVATIONS.index(epilogue.removeprefix("glu:")), scale)
        return
    residual = e.value(step.inputs[1]) if epilogue == "residual" else _NULL
    finish = _Finish(residual, _EPILOGUES[epilogue], scale=scale)
    _products(e, rows, [_Product(w, b, e.value(y)) for (w, b), y in zip(pairs, step.outputs, strict=True)], finish)


def _gated(e: Emitter, rows: _Input, pairs: list[tuple[Weight, Address]], step: Step, gate: int, scale: float) -> None:
    """Gate and up in one matrix of pairs if their types are alike, else each to scratch memory and then together."""
    (first, first_bias), (second, second_bias) = pairs
    y, limit, n = e.value(step.output), step.number("limit"), first.shape[0]
    if first.type == second.type != GGMLType.F32 and first.shape == second.shape:
        tiles = tiles_of(e, first, second)
        finish = _Finish(_NULL, _EPILOGUES["glu"], gate, limit, scale)
        # The second matrix has no strips: it lends its bias.
        matrices = ((tiles.address, first_bias, y, n, tiles.n_strips), (_NULL, second_bias, _NULL, 0, 0))
        _prepare(e, rows, [tiles])
        _tiled(e, rows, tiles, matrices, finish)
        return
    a, b = (e.scratch(f"linears {name}", 4 * n * e.max_rows) for name in ("gate", "up"))
    _products(e, rows, [_Product(first, first_bias, a), _Product(second, second_bias, b)], _Finish(scale=scale))
    e.launch(
        "linear_gate",
        (-(-n // 256), Rows(rows.kind)),
        256,
        rows.kind,
        a,
        b,
        y,
        n,
        gate,
        limit,
        kind=rows.kind,
        early=True,
    )


@emits("per_head_linear")
def _per_head_linear(e: Emitter, step: Step) -> None:
    (weight,) = step.weights
    heads, _, columns = weight.shape
    rows = _Input(e.value(step.inputs[0]), e.kind(step.inputs[0]), columns, heads=heads)
    _products(e, rows, [_Product(weight, _NULL, e.value(step.output))], _Finish())


_Groups = dict[str, list[tuple[Tiles, _Product]]]  # by the kind of tiles


def _products(e: Emitter, rows: _Input, products: Sequence[_Product], finish: _Finish) -> None:
    """Matrices of one type go together, three at most."""
    groups: _Groups = {}
    for product in products:
        if product.weight.type == GGMLType.F32:
            _plain(e, rows, product, finish)
        else:
            tiles = tiles_of(e, product.weight)
            groups.setdefault(tiles.kind, []).append((tiles, product))
    _prepare(e, rows, [group[0][0] for group in groups.values()])
    if rows.heads == 1 and _is_mixed(groups):
        _mixed(e, rows, groups, finish)
        return
    for group in groups.values():
        for i in range(0, len(group), 3):
            matrices = tuple((t.address, p.bias, p.y, p.n_rows, t.n_strips) for t, p in group[i : i + 3])
            _tiled(e, rows, group[0][0], matrices, finish)


def _is_mixed(groups: _Groups) -> bool:
    """Whether a kernel of few rows takes all matrices at once: q and k of one kind, v of q6_k."""
    sizes = {kind: len(group) for kind, group in groups.items()}
    return sizes.pop("q6_k", 0) == 1 and sizes in ({"q4_k": 2}, {"q5_k": 2})


def _mixed(e: Emitter, rows: _Input, groups: _Groups, finish: _Finish) -> None:
    """Few rows by one kernel, whose last matrix is of the second kind; many rows kind by kind."""
    first = next(group for kind, group in groups.items() if kind != "q6_k")
    pairs = [*first, *groups["q6_k"]]
    matrices = tuple((t.address, p.bias, p.y, p.n_rows, t.n_strips) for t, p in pairs)
    flat = tuple(arg for m in matrices for arg in m)
    n_strips, largest = sum(m[4] for m in matrices), groups["q6_k"][0][0]
    sizes, least = _groups(e, rows, largest), 1
    for n_group in sizes:
        n_stages = _stages(e, rows, _tile_bytes(largest), n_group)
        kernel = f"linear_row__{first[0][0].kind}_q6_k"
        _few(e, rows, largest, n_strips, flat, finish, n_group, n_stages, least, n_group, kernel)
        least = n_group + 1
    for part in (matrices[:2], matrices[2:]):
        tiles = first[0][0] if len(part) == 2 else largest
        _many(e, rows, tiles, part, _flat(part), finish, least)


def _plain(e: Emitter, rows: _Input, product: _Product, finish: _Finish) -> None:
    """A matrix of f32 numbers."""
    x, kind, n = rows.x, rows.kind, rows.n_columns
    if rows.norm:
        x = e.scratch("linears normed", 4 * n * e.max_rows)
        e.launch("linear_normed", Rows(kind), 512, kind, rows.x, rows.norm, rows.eps, n, x, kind=kind, early=True)
    grid = (-(-product.n_rows // 8), Rows(kind, 8), rows.heads)
    stride, width = n * rows.heads, product.n_rows * rows.heads
    w = e.raw(product.weight)
    out = (product.bias, product.y, width, product.n_rows)
    e.launch("linear_f32", grid, 256, kind, x, stride, n, w, *out, *finish.args, kind=kind, early=True)


def _tile_bytes(tiles: Tiles) -> int:
    return (tiles.factors - tiles.address) // (tiles.n_strips * tiles.n_tiles)


_Matrices = tuple[tuple[Address, Address, Address, int, int], ...]


def _tiled(e: Emitter, rows: _Input, tiles: Tiles, matrices: _Matrices, finish: _Finish) -> None:
    """Matrices of tiles of one kind, by kernels for each number of rows."""
    n_strips, n_bytes = sum(m[4] for m in matrices), _tile_bytes(tiles)
    flat = _flat(matrices)
    sizes = _groups(e, rows, tiles)
    least = 1
    for n_group in sizes:
        # Heads have no kernel of many rows: groups of few follow one another.
        most = 1 << 30 if rows.heads > 1 and n_group == sizes[-1] else n_group
        _few(e, rows, tiles, n_strips, flat, finish, n_group, _stages(e, rows, n_bytes, n_group), least, most)
        least = most + 1
    if rows.heads == 1:
        _many(e, rows, tiles, matrices, flat, finish, least)


def _flat(matrices: _Matrices) -> tuple[Address | int, ...]:
    """Arguments MATRIX(0), MATRIX(1) and MATRIX(2) of the kernels."""
    return tuple(arg for m in (*matrices, *[(_NULL, _NULL, _NULL, 0, 0)] * (3 - len(matrices))) for arg in m)


def _groups(e: Emitter, rows: _Input, tiles: Tiles) -> list[int]:
    """Rows that the kernel of few rows takes at once: as many as leave shared memory for the stream of tiles.

    None if a single row leaves none, on GPUs with little: then the kernels of many rows take all.
    """
    n_bytes = _tile_bytes(tiles)
    n_stages = _stages(e, rows, n_bytes, 1)
    if n_stages < 1 and rows.heads > 1:
        raise UnsupportedError(f"heads of {rows.n_columns} columns need more shared memory than {e.device.name} has")
    return [n for n in (1, 2, 4, 8) if n_stages > 0 and _stages(e, rows, n_bytes, n) == n_stages]


def _prepared(e: Emitter, rows: _Input) -> tuple[Address, Address, int]:
    """Memory of prepared rows and of what their numbers were multiplied by, and how many rows it has."""
    stride = -(-e.max_rows // 128) * 128
    prepared = e.scratch("linears rows", stride * rows.n_tiles * 512)
    return prepared, e.scratch("linears backs", 4 * stride), stride


def _prepare(e: Emitter, rows: _Input, all_tiles: Sequence[Tiles]) -> None:
    """Prepares the rows once for all matrices of the step. A single one is halved by the blocks that need it."""
    if rows.heads > 1 or not all_tiles:
        return
    prepared, backs, stride = _prepared(e, rows)
    n, kind = rows.n_columns, rows.kind
    args = (kind, rows.x, n, rows.norm, rows.eps, n, stride, prepared, backs)
    kernel, n_threads = ("linear_prepare", 128) if n <= 4096 else ("linear_prepare_long", 256)
    least = 2 if all(_groups(e, rows, tiles) for tiles in all_tiles) else 1
    e.launch(kernel, Rows(kind), n_threads, *args, least=least, kind=kind, early=True)


def _stages(e: Emitter, rows: _Input, n_bytes: int, n_group: int) -> int:
    """Tiles that each warp has under way beside the rows of a group."""
    left = e.device.shared_bytes - _ROW_FIXED - rows.n_tiles * 512 * n_group
    return min(-(-_UNDER_WAY // (_WARPS * n_bytes)), left // (_WARPS * n_bytes))


def _few(
    e: Emitter,
    rows: _Input,
    tiles: Tiles,
    n_strips: int,
    flat: tuple[Address | int, ...],
    finish: _Finish,
    n_group: int,
    n_stages: int,
    least: int,
    most: int,
    kernel: str = "",
) -> None:
    n, heads, kind = rows.n_columns, rows.heads, rows.kind
    n_bytes = _tile_bytes(tiles)
    kernel = kernel or f"linear_row__{tiles.kind}"
    if n_group == most == heads == 1 and n % 4 == 0 and n <= _LONGEST:
        _one(e, rows, kernel.replace("row", "one", 1), n_bytes, n_strips, flat, finish)
        return
    stride = flat[3] * heads if heads > 1 else 0
    prepared = _prepared(e, rows) if n_group > 1 and heads == 1 else (_NULL, _NULL, 0)
    shared = _ROW_FIXED + rows.n_tiles * 512 * n_group + _WARPS * n_stages * n_bytes
    e.launch(
        kernel,
        (min(e.device.n_processors, n_strips), heads, Rows(kind, n_group)),
        512,
        *(kind, rows.x, n * heads, rows.norm, rows.eps, n, *flat, tiles.stride, stride, *finish.args),
        *(*prepared, n_group, n_stages),
        shared=shared,
        least=least,
        most=most,
        kind=kind,
        early=True,
    )


def _one(
    e: Emitter, rows: _Input, kernel: str, n_bytes: int, n_strips: int, flat: tuple[Address | int, ...], finish: _Finish
) -> None:
    """A single row, if a block's registers hold it."""
    fixed, stage = _ROW_FIXED + rows.n_tiles * 512, _WARPS * n_bytes
    n_stages = min(_ONE_STAGES, (e.device.shared_bytes - fixed) // stage)
    tiles, bias, y, n_rows, strips = (flat[i::5] for i in range(5))
    # What the first fetches need comes first.
    first = (tiles[0], strips[0], rows.n_columns, tiles[1], strips[1], n_stages, tiles[2], strips[2])
    rest = (_ONE_EARLY, rows.x, rows.norm, rows.eps, *n_rows, *bias, *y, *finish.args)
    name, grid = kernel if rows.n_columns <= _SHORT else f"{kernel}_long", min(e.device.n_processors, n_strips)
    shared = fixed + n_stages * stage
    e.launch(name, grid, 512, *first, *rest, shared=shared, least=1, most=1, kind=rows.kind, early=True)


def _many(
    e: Emitter,
    rows: _Input,
    tiles: Tiles,
    matrices: _Matrices,
    flat: tuple[Address | int, ...],
    finish: _Finish,
    first: int,
) -> None:
    kind, n, n_bytes = rows.kind, rows.n_columns, _tile_bytes(tiles)
    prepared, backs, stride = _prepared(e, rows)
    # Hopper's own instructions are in kernels of their own.
    family, widths = ("wide", _WIDE) if e.device.kernels_for == 90 else ("many", _MANY)
    is_wide, n_blocks = family == "wide", e.device.n_processors
    n_high = sum(-(-m[4] // 8) for m in matrices)
    n_pair = 2 if is_wide else 1  # blocks of wide kernels work in pairs
    n_items, n_groups = -(-n_high // n_pair), n_blocks // n_pair
    for width, most, n_splits in _variants(widths, n_items, n_groups):
        if most < first:
            continue
        # Sums of slices, or of items that one pair of blocks begins and the next ends.
        n_sums = 16 * n_high if n_splits > 1 else n_blocks if is_wide else 0
        parts = e.scratch("linears parts", 512 * width * n_sums) if n_sums else _NULL
        flags = (e.array("linears flags", 32 * n_blocks, lambda: np.zeros(8 * n_blocks, np.uint32)),) if is_wide else ()
        stages, shared = _wide_stages(e, width, n_bytes) if is_wide else _many_stages(e, width, n_bytes)
        e.launch(
            f"linear_{family}__{tiles.kind}_{width}",
            min(n_groups, n_items * n_splits * -(-min(most, stride) // width)) * n_pair,
            384 if is_wide else 256,
            *(kind, prepared, backs, stride, n, *flat, *finish.args, parts, *flags, n_splits, *stages),
            shared=shared,
            least=first,
            most=most,
            kind=kind,
            early=True,
        )
        if n_splits > 1:
            args = (kind, parts, backs, width, rows.n_tiles * n_bytes, *flat, *finish.args)
            grid = (n_high, Rows(kind))
            e.launch("linear_sum", grid, 128, *args, least=first, most=most, kind=kind, early=True)
        first = most + 1


def _wide_stages(e: Emitter, width: int, n_bytes: int) -> tuple[tuple[int, ...], int]:
    """Stages of tiles and of rows, and the shared memory that they take."""
    row_stages = 8 if width < 128 else 6 if n_bytes < 4608 else 5
    fixed = 1024 + 512 + 32 * width + row_stages * width * 128  # alignment, barriers, powers and rows
    # More would be under way than memory takes at once.
    tile_stages = min(4, (e.device.shared_bytes - fixed) // (8 * n_bytes))
    return (tile_stages, row_stages), fixed + tile_stages * 8 * n_bytes


def _many_stages(e: Emitter, width: int, n_bytes: int) -> tuple[tuple[int, ...], int]:
    stage = width * 512 + 8 * n_bytes
    n_stages = min(4, e.device.shared_bytes // stage)
    return (n_stages,), n_stages * stage


def _variants(widths: Sequence[int], n_high: int, n_processors: int) -> list[tuple[int, int, int]]:
    """(width, most rows, parts of the slices) of each kernel of many rows, in the order of rows.

    Rows that one width holds, then as many as narrow ones hold with a block on each multiprocessor, then the rest.
    """
    out = [(width, width, _splits(n_high, n_processors)) for width in widths[:-1]]
    out += [(width, width * (n_processors // n_high), 1) for width in widths[1:-1]]
    out = [one for i, one in enumerate(out) if all(one[1] > before[1] for before in out[:i])]
    return [*out, (widths[-1], 1 << 30, 1)]


def _splits(n_high: int, n_processors: int) -> int:
    """Parts of the slices that blocks share, if there are too few rows of weights for all multiprocessors.

    The fewest that leave the longest block the least. More rows than multiprocessors are not split: the sums of slices
    would have to be read once more.
    """
    if n_high > n_processors:
        return 1
    return min((1, 2, 4, 8), key=lambda n: -(-n_high * n // n_processors) / n)
