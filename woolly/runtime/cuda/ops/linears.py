"""Emitters of linear layers: choice of the matrix-product kernels by the number of rows.

All variants compute the same bits (native/cuda/linears/linears.cuh), so the choice affects only speed. Small batches
are limited by weight bandwidth, large ones by tensor cores. In between, work is split over all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime.cuda.emitters import emits
from woolly.runtime.cuda.ops.linear_arguments import NULL, EpilogueParams, Input, Matrices, flat, prepared, tile_bytes
from woolly.runtime.cuda.ops.linear_rows8 import launch_heads, launch_rows8
from woolly.runtime.cuda.ops.linear_rows32 import launch_rows32, max_rows32
from woolly.runtime.cuda.ops.rows import ACTIVATIONS
from woolly.runtime.cuda.weight_tiles import Tiles, tiles_of
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Emitter, GridRows

_EPILOGUES = {"none": 0, "residual": 1, "glu": 2}

# Row tiles of the GEMM kernels.
_WGMMA_ROWS = (16, 32, 64, 128)
_MMA_ROWS = (16, 64)
# GEMM kernels prepare up to 64 rows themselves if there are enough blocks of 128 weight rows: rows, blocks, columns.
_MAX_OWN_ROWS, _MIN_W_BLOCKS, _MAX_FUSED_COLUMNS = 64, 8, 14336
# Row tiles of linear_splitk.cu, blocks per team, and maximum items per team.
_SPLITK_ROWS, _SPLITK_BLOCKS, _SPLITK_ROUNDS = (32, 64), 4, 2
# From 1,793 rows on, GEMM kernels use row tiles of 160 to unpack weight tiles less often, if those have <= 3,456 bytes.
_WIDEST_ROWS, _WIDEST_FROM, _WIDEST_BYTES = 160, 1793, 3456


@dataclass(frozen=True)
class _Product:
    """One matrix of a step: weight, bias and output address."""

    weight: Weight
    bias: Address
    y: Address

    @property
    def n_rows(self) -> int:
        return self.weight.shape[-2]


@emits("linear", "linears")
def _linears(e: Emitter, step: Step) -> None:
    attributes = dict(step.attributes)
    epilogue = str(attributes.get("epilogue", "none"))
    scale = float(step.number("scale")) if "scale" in attributes else 1.0
    norm = step.by_role("norm")
    rows = Input(
        e.value(step.inputs[0]),
        e.kind(step.inputs[0]),
        e.width(step.inputs[0]),
        e.vector(norm[0]) if norm else NULL,
        step.number("eps") if norm else 0.0,
    )
    pairs: list[tuple[Weight, Address]] = []
    for weight, role in zip(step.weights, step.roles, strict=True):
        if role == "weight":
            pairs.append((weight, NULL))
        elif role == "bias":
            pairs[-1] = (pairs[-1][0], e.vector(weight))
    if epilogue.startswith("glu:"):
        _launch_glu(e, rows, pairs, step, ACTIVATIONS.index(epilogue.removeprefix("glu:")), scale)
        return
    residual = e.value(step.inputs[1]) if epilogue == "residual" else NULL
    epi = EpilogueParams(residual, _EPILOGUES[epilogue], scale=scale)
    _products(e, rows, [_Product(w, b, e.value(y)) for (w, b), y in zip(pairs, step.outputs, strict=True)], epi)


def _launch_glu(
    e: Emitter, rows: Input, pairs: list[tuple[Weight, Address]], step: Step, gate: int, scale: float
) -> None:
    """Launch gate and up as one matrix of paired rows if their types are equal, else separately with a GLU kernel."""
    (first, first_bias), (second, second_bias) = pairs
    y, limit, n = e.value(step.output), step.number("limit"), first.shape[0]
    if first.type == second.type != GGMLType.F32 and first.shape == second.shape:
        tiles = tiles_of(e, first, second)
        epi = EpilogueParams(NULL, _EPILOGUES["glu"], gate, limit, scale)
        # The second matrix is empty and only passes its bias.
        matrices = ((tiles.address, first_bias, y, n, tiles.n_panels), (NULL, second_bias, NULL, 0, 0))
        is_fused = _prepare(e, rows, [(tiles, matrices)])
        _launch_tiles(e, rows, tiles, matrices, epi, is_fused)
        return
    a, b = (e.scratch(f"linears {name}", 4 * n * e.max_rows) for name in ("gate", "up"))
    _products(e, rows, [_Product(first, first_bias, a), _Product(second, second_bias, b)], EpilogueParams(scale=scale))
    e.launch(
        "linear_glu",
        (-(-n // 256), GridRows(rows.kind)),
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
    rows = Input(e.value(step.inputs[0]), e.kind(step.inputs[0]), columns, heads=heads)
    _products(e, rows, [_Product(weight, NULL, e.value(step.output))], EpilogueParams())


_Groups = dict[str, list[tuple[Tiles, _Product]]]  # by tile kind


def _products(e: Emitter, rows: Input, products: Sequence[_Product], epi: EpilogueParams) -> None:
    """Launch all products, up to three matrices of one type per launch."""
    groups: _Groups = {}
    for product in products:
        if product.weight.type == GGMLType.F32:
            _launch_f32(e, rows, product, epi)
        else:
            tiles = tiles_of(e, product.weight)
            groups.setdefault(tiles.kind, []).append((tiles, product))
    parts = [
        (group[0][0], tuple((t.address, p.bias, p.y, p.n_rows, t.n_panels) for t, p in group[i : i + 3]))
        for group in groups.values()
        for i in range(0, len(group), 3)
    ]
    is_fused = _prepare(e, rows, parts)
    if rows.heads == 1 and _is_mixed(groups):
        _mixed(e, rows, groups, epi, is_fused)
        return
    for tiles, matrices in parts:
        _launch_tiles(e, rows, tiles, matrices, epi, is_fused)


def _is_mixed(groups: _Groups) -> bool:
    """True if the small-batch kernel can compute q and k in q4_k or q5_k together with v in q6_k."""
    sizes = {kind: len(group) for kind, group in groups.items()}
    return sizes.pop("q6_k", 0) == 1 and sizes in ({"q4_k": 2}, {"q5_k": 2})


def _mixed(e: Emitter, rows: Input, groups: _Groups, epi: EpilogueParams, is_fused: bool) -> None:
    """Launch small batches with one kernel for both kinds (q6_k last), larger ones with a kernel per kind."""
    first = next(group for kind, group in groups.items() if kind != "q6_k")
    pairs = [*first, *groups["q6_k"]]
    matrices = tuple((t.address, p.bias, p.y, p.n_rows, t.n_panels) for t, p in pairs)
    largest = groups["q6_k"][0][0]
    both = f"{first[0][0].kind}_q6_k"
    launch_rows8(e, rows, largest, matrices, epi, both)
    launch_rows32(e, rows, largest, matrices, epi, both)
    first_many = max_rows32(e, rows, largest) + 1
    width = _SPLITK_ROWS[-1] if _SPLITK_ROWS else 0
    if first_many <= width and _uses_splitk(e, rows, matrices, epi):
        _launch_splitk(e, rows, both, tile_bytes(largest), matrices, epi, width, (first_many, width), is_fused)
        first_many = width + 1
    for part in (matrices[:2], matrices[2:]):
        tiles = first[0][0] if len(part) == 2 else largest
        # The second product reuses the rows prepared by the first.
        _launch_gemm(e, rows, tiles, part, epi, first_many, is_fused and len(part) == 2)


def _launch_f32(e: Emitter, rows: Input, product: _Product, epi: EpilogueParams) -> None:
    """Launch the product of an f32 matrix."""
    x, kind, n = rows.x, rows.kind, rows.n_columns
    if rows.norm:
        x = e.scratch("linears normed", 4 * n * e.max_rows)
        e.launch("linear_norm", GridRows(kind), 512, kind, rows.x, rows.norm, rows.eps, n, x, kind=kind, early=True)
    grid = (-(-product.n_rows // 8), GridRows(kind, 8), rows.heads)
    stride, width = n * rows.heads, product.n_rows * rows.heads
    w = e.raw(product.weight)
    out = (product.bias, product.y, width, product.n_rows)
    e.launch("linear_f32", grid, 256, kind, x, stride, n, w, *out, *epi.args, kind=kind, early=True)


def _launch_tiles(
    e: Emitter, rows: Input, tiles: Tiles, matrices: Matrices, epi: EpilogueParams, is_fused: bool
) -> None:
    """Launch matrices of one tile kind, with one kernel per range of rows."""
    if rows.heads > 1:
        launch_heads(e, rows, tiles, matrices)
        return
    launch_rows8(e, rows, tiles, matrices, epi)
    launch_rows32(e, rows, tiles, matrices, epi)
    _launch_gemm(e, rows, tiles, matrices, epi, max_rows32(e, rows, tiles) + 1, is_fused)


def _prepare(e: Emitter, rows: Input, parts: Sequence[tuple[Tiles, Matrices]]) -> bool:
    """Launch the preparation (norm, f16 conversion) of the rows, shared by all matrices of the step.

    Small-batch kernels prepare rows themselves. Return True if the GEMM kernels do so for up to _MAX_OWN_ROWS rows.
    """
    if rows.heads > 1 or not parts:
        return False
    memory, inv_scales, stride = prepared(e, rows)
    n, kind = rows.n_columns, rows.kind
    args = (kind, rows.x, n, rows.norm, rows.eps, n, stride, memory, inv_scales)
    kernel, n_threads = ("linear_prepare", 128) if n <= 4096 else ("linear_prepare_long", 256)
    least = min(max_rows32(e, rows, tiles) for tiles, _ in parts) + 1
    n_w_blocks = sum(_n_w_blocks(matrices) for _, matrices in parts)
    is_fused = e.device.kernels_for == 90 and n % 4 == 0 and n <= _MAX_FUSED_COLUMNS and n_w_blocks >= _MIN_W_BLOCKS
    if is_fused:
        least = max(least, _MAX_OWN_ROWS + 1)
    e.launch(kernel, GridRows(kind), n_threads, *args, least=least, kind=kind, early=True)
    return is_fused


def _n_w_blocks(matrices: Matrices) -> int:
    """Return the number of blocks of 128 weight rows."""
    return sum(-(-m[4] // 8) for m in matrices)


def _launch_gemm(
    e: Emitter, rows: Input, tiles: Tiles, matrices: Matrices, epi: EpilogueParams, first: int, is_fused: bool
) -> None:
    """Launch the GEMM kernels from `first` rows on. `is_fused`: they prepare up to _MAX_OWN_ROWS rows themselves."""
    kind, n, n_bytes = rows.kind, rows.n_columns, tile_bytes(tiles)
    memory, inv_scales, stride = prepared(e, rows)
    # Hopper uses WGMMA kernels.
    family, widths = ("wgmma", _WGMMA_ROWS) if e.device.kernels_for == 90 else ("mma", _MMA_ROWS)
    is_wgmma, n_blocks = family == "wgmma", e.device.n_processors
    n_w_blocks = _n_w_blocks(matrices)
    n_pair = 2 if is_wgmma else 1  # blocks of WGMMA kernels work in pairs
    n_items, n_groups = -(-n_w_blocks // n_pair), n_blocks // n_pair
    variants = _variants(widths, n_items, n_groups)
    if is_wgmma and n_bytes <= _WIDEST_BYTES:
        variants[-1:] = [(widths[-1], _WIDEST_FROM - 1, 1), (_WIDEST_ROWS, 1 << 30, 1)]
    for width, most, n_splits in variants:
        if most < first:
            continue
        arrivals = e.array("linears arrivals", 8, lambda: np.zeros(2, np.uint32)) if is_wgmma else NULL
        fused = (rows.x if is_fused else NULL, rows.norm, rows.eps, arrivals) if is_wgmma else ()
        stages, shared = _wgmma_stages(e, width, n_bytes) if is_wgmma else _mma_stages(e, width, n_bytes)
        if n_splits > 1 and width in _SPLITK_ROWS and _uses_splitk(e, rows, matrices, epi):
            _launch_splitk(e, rows, tiles.kind, n_bytes, matrices, epi, width, (first, most), is_fused)
            first = most + 1
            continue
        # Partial sums of split-K slices, or of items that one pair of blocks starts and the next one completes.
        n_sums = 16 * n_w_blocks if n_splits > 1 else n_blocks if is_wgmma else 0
        parts = e.scratch("linears parts", 512 * width * n_sums) if n_sums else NULL
        flags = (
            (e.array("linears flags", 32 * n_blocks, lambda: np.zeros(8 * n_blocks, np.uint32)),) if is_wgmma else ()
        )
        e.launch(
            f"linear_{family}__{tiles.kind}_{width}",
            min(n_groups, n_items * n_splits * -(-min(most, stride) // width)) * n_pair,
            384 if is_wgmma else 256,
            *(
                kind,
                memory,
                inv_scales,
                stride,
                n,
                *flat(matrices),
                *epi.args,
                parts,
                *flags,
                n_splits,
                *stages,
                *fused,
            ),
            shared=shared,
            least=first,
            most=most,
            kind=kind,
            early=True,
            group=n_pair,
        )
        if n_splits > 1:
            args = (kind, parts, inv_scales, width, rows.n_tiles * n_bytes, *flat(matrices), *epi.args)
            grid = (n_w_blocks, GridRows(kind))
            e.launch("linear_reduce", grid, 128, *args, least=first, most=most, kind=kind, early=True)
        first = most + 1


def _uses_splitk(e: Emitter, rows: Input, matrices: Matrices, epi: EpilogueParams) -> bool:
    """True if linear_splitk.cu computes these products: every slice has tiles, and blocks outnumber items."""
    if e.device.kernels_for != 90 or rows.n_tiles < 16 or epi.epilogue == _EPILOGUES["glu"]:
        return False
    n_teams = e.device.n_processors // _SPLITK_BLOCKS
    return n_teams > 0 and _n_w_blocks(matrices) <= _SPLITK_ROUNDS * n_teams


def _launch_splitk(
    e: Emitter,
    rows: Input,
    kind: str,
    n_bytes: int,
    matrices: Matrices,
    epi: EpilogueParams,
    width: int,
    counts: tuple[int, int],
    is_fused: bool,
) -> None:
    """Launch linear_splitk.cu for `counts` (minimum, maximum) rows and tiles of up to n_bytes."""
    memory, inv_scales, stride = prepared(e, rows)
    arrivals = e.array("linears arrivals", 8, lambda: np.zeros(2, np.uint32))
    fused = (rows.x if is_fused else NULL, rows.norm, rows.eps, arrivals)
    stages, shared = _wgmma_stages(e, width, n_bytes, 512 * width + 128)
    # Partial sums passed from pair to pair; the sentinel 0xFFFFFFFF means "not written".
    n_handoff = _SPLITK_ROUNDS * e.device.n_processors * _SPLITK_ROWS[-1] * 128
    handoff = e.array("linears left", 4 * n_handoff, lambda: np.full(n_handoff, 0xFFFFFFFF, np.uint32))
    e.launch(
        f"linear_splitk__{kind}_{width}",
        min(_n_w_blocks(matrices), e.device.n_processors // _SPLITK_BLOCKS) * _SPLITK_BLOCKS,
        384,
        *(rows.kind, memory, inv_scales, stride, rows.n_columns, *flat(matrices), *epi.args, handoff, *stages, *fused),
        shared=shared,
        least=counts[0],
        most=counts[1],
        kind=rows.kind,
        early=True,
        group=2,
    )


def _wgmma_stages(e: Emitter, width: int, n_bytes: int, rest: int = 0) -> tuple[tuple[int, ...], int]:
    """Return (tile stages, row stages) of the pipeline and the shared memory in bytes, including `rest` extra bytes."""
    for row_stages in (8, 4) if width < 128 else (6 if n_bytes < 4608 else 5,):
        fixed = 1024 + 512 + 32 * width + row_stages * width * 128 + rest  # alignment, barriers, powers and rows
        # More than 4 stages would exceed the memory requests in flight.
        tile_stages = min(4, (e.device.shared_bytes - fixed) // (8 * n_bytes))
        if tile_stages > 1:
            break
    return (tile_stages, row_stages), fixed + tile_stages * 8 * n_bytes


def _mma_stages(e: Emitter, width: int, n_bytes: int) -> tuple[tuple[int, ...], int]:
    stage = width * 512 + 8 * n_bytes
    n_stages = min(4, e.device.shared_bytes // stage)
    return (n_stages,), n_stages * stage


def _variants(widths: Sequence[int], n_w_blocks: int, n_processors: int) -> list[tuple[int, int, int]]:
    """Return (row tile, maximum rows, split-K parts) of each GEMM launch, by ascending rows.

    The order is one row tile of each width, then narrow tiles while one block per multiprocessor suffices, then the
    rest.
    """
    out = [(width, width, _splits(n_w_blocks, n_processors)) for width in widths[:-1]]
    out += [(width, width * (n_processors // n_w_blocks), 1) for width in widths[1:-1]]
    out = [one for i, one in enumerate(out) if all(one[1] > before[1] for before in out[:i])]
    return [*out, (widths[-1], 1 << 30, 1)]


def _splits(n_w_blocks: int, n_processors: int) -> int:
    """Return the number of split-K parts, 1 if there are at least as many weight blocks as multiprocessors.

    The result is the smallest number of parts that minimizes the longest block. Partial sums cost an additional pass.
    """
    if n_w_blocks > n_processors:
        return 1
    return min((1, 2, 4, 8), key=lambda n: -(-n_w_blocks * n // n_processors) / n)
