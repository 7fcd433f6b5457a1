"""Products of up to 8 rows: choice of the kernel and its pipeline depth."""

from __future__ import annotations

import numpy as np

from woolly.errors import UnsupportedError
from woolly.runtime.cuda.ops.linear_arguments import EpilogueParams, Input, Matrices, flat, tile_bytes
from woolly.runtime.cuda.weight_tiles import Tiles
from woolly.runtime.gpu.device import Argument
from woolly.runtime.gpu.emitter import Emitter, GridRows

_WARPS = 16
# Shared memory for barriers, reductions and sums of linear_gemv.cu, linear_heads.cu and linear_rows8.cu.
_GEMV_FIXED = 2048 + 2 * 8 * 16 * 16 * 4
_FIXED = 2048 + 2 * 16 * 16 * 16 * 4
_MAX_TILES = 112  # number of barriers in linear_rows8.cu
_ROWS8_FIXED, _REGISTER_SUMS, _SUMS = 2048, 2 * 32 * 16 * 20 * 4, 16 * 16 * 20 * 4
# Maximum columns in the registers of a block, for the short and the long kernel variants.
_MAX_SHORT_COLUMNS, _MAX_COLUMNS = 4096, 14336
# Tiles in flight per warp, and tiles prefetched before the rows: for one row, and for several.
_GEMV_STAGES, _GEMV_EARLY = 2, 1
# A single row keeps more tiles in flight if each warp has at least _LONG_TILES tiles.
_LONG_STAGES, _LONG_TILES = 3, 6
_ROWS8_STAGES, _ROWS8_EARLY = 2, 1
# Rows that each block of linear_rows8.cu prepares itself if it keeps them in registers.
_FUSED_ROWS = 2


def _is_gemv(rows: Input) -> bool:
    """True if linear_gemv.cu supports the row: its columns are a multiple of 4 and fit in the registers of a block."""
    return rows.n_columns % 4 == 0 and rows.n_columns <= _MAX_COLUMNS


def _is_in_registers(e: Emitter, rows: Input) -> bool:
    """True if warps of linear_rows8.cu keep their columns in registers, which needs larger buffers for sums."""
    return rows.n_columns % 4 == 0 and rows.n_tiles in (1, 2, 4, 8, 16) and e.device.shared_bytes >= 2 * _REGISTER_SUMS


def _team(e: Emitter, rows: Input) -> int:
    """Return the number of blocks of linear_rows8.cu that share panels."""
    return 2 if e.device.kernels_for == 90 and not _is_in_registers(e, rows) else 1


def _fixed(e: Emitter, rows: Input, n_group: int) -> int:
    """Return the shared memory in bytes besides the tile stages."""
    if n_group == 1 and _is_gemv(rows):
        return _GEMV_FIXED + rows.n_tiles * 512
    if _is_in_registers(e, rows):
        return _ROWS8_FIXED + _REGISTER_SUMS + (rows.n_tiles * 512 * n_group if n_group == _FUSED_ROWS else 0)
    return _ROWS8_FIXED + _SUMS // _team(e, rows) + _tiles_of_block(e, rows) * 512 * n_group


def _tiles_of_block(e: Emitter, rows: Input) -> int:
    """Return the column tiles of a block of linear_rows8.cu. In a team of two, a block has every second slice."""
    team = _team(e, rows)
    return rows.n_tiles // 16 * (16 // team) + -(-(rows.n_tiles % 16) // team)


def _stages(e: Emitter, rows: Input, tiles: Tiles, n_group: int) -> int:
    """Return the tiles in flight per warp that fit next to `n_group` rows, or 0 or less if none fit."""
    is_gemv = n_group == 1 and _is_gemv(rows)
    if not is_gemv and not _is_in_registers(e, rows) and _tiles_of_block(e, rows) > _MAX_TILES:
        return 0
    most = _GEMV_STAGES if is_gemv else _ROWS8_STAGES
    if is_gemv and tiles.n_panels * rows.n_tiles >= _LONG_TILES * _WARPS * e.device.n_processors:
        most = _LONG_STAGES
    return min(most, (e.device.shared_bytes - _fixed(e, rows, n_group)) // (_WARPS * tile_bytes(tiles)))


def _sizes(e: Emitter, rows: Input, tiles: Tiles) -> list[int]:
    """Return the row counts whose kernels have shared memory left for tiles."""
    return [n for n in (1, 2, 4, 8) if _stages(e, rows, tiles, n) > 0]


def max_rows8(e: Emitter, rows: Input, tiles: Tiles) -> int:
    """Return the maximum number of rows that the small-batch kernels support.

    0 on GPUs with too little shared memory for one row, where the GEMM kernels compute all batches.
    """
    return max(_sizes(e, rows, tiles), default=0)


def launch_rows8(
    e: Emitter, rows: Input, tiles: Tiles, matrices: Matrices, epi: EpilogueParams, kind: str = ""
) -> None:
    """Launch the small-batch kernels. `tiles`: largest tile of the matrices. `kind`: tile kinds of mixed matrices."""
    tile, bias, y, n_rows, panels = (flat(matrices)[i::5] for i in range(5))
    kind, least = kind or tiles.kind, 1
    for n_group in _sizes(e, rows, tiles):
        n_stages = _stages(e, rows, tiles, n_group)
        is_gemv = n_group == 1 and _is_gemv(rows)
        team = 1 if is_gemv else _team(e, rows)
        # Arguments of the first fetches come first.
        first = (tile[0], panels[0], rows.n_columns, tile[1], panels[1], n_stages, tile[2], panels[2])
        if is_gemv:
            suffix = "_k4096" if rows.n_tiles == 16 else "" if rows.n_columns <= _MAX_SHORT_COLUMNS else "_long"
            name = f"linear_gemv__{kind}{suffix}"
            middle: tuple[Argument, ...] = (_GEMV_EARLY, rows.x, rows.norm, rows.eps)
        else:
            name = f"linear_rows8__{kind}"
            if _is_in_registers(e, rows):
                name = f"{name}_2rows" if n_group == _FUSED_ROWS else f"{name}_regs"
            x_f16, inv_scales = e.scratch("linears halves", rows.n_tiles * 512 * 8), e.scratch("linears few backs", 32)
            arrivals = e.array("linears arrivals", 8, lambda: np.zeros(2, np.uint32))
            middle = (_ROWS8_EARLY, rows.kind, n_group, rows.x, rows.norm, rows.eps, x_f16, inv_scales, arrivals)
        shared = _fixed(e, rows, n_group) + n_stages * _WARPS * tile_bytes(tiles)
        if is_gemv:
            # Request more than half of the shared memory (1 KB per block is reserved), so that each multiprocessor gets
            # one block.
            shared = max(shared, (e.device.shared_bytes + 1024) // 2)
        e.launch(
            name,
            min(e.device.n_processors // team, sum(m[4] for m in matrices)) * team,
            512,
            *(*first, *middle, *n_rows, *bias, *y, *epi.args),
            shared=shared,
            least=least,
            most=n_group,
            kind=rows.kind,
            early=True,
            group=team,
        )
        least = n_group + 1


def launch_heads(e: Emitter, rows: Input, tiles: Tiles, matrices: Matrices) -> None:
    """Launch a product with one matrix per head. Large batches are split into groups, as there is no GEMM kernel."""
    n_bytes = tile_bytes(tiles)

    def shared(n_group: int, n_stages: int) -> int:
        return _FIXED + rows.n_tiles * 512 * n_group + _WARPS * n_stages * n_bytes

    sizes = [n for n in (1, 2, 4, 8) if shared(n, 1) <= e.device.shared_bytes]
    if not sizes:
        raise UnsupportedError(f"heads of {rows.n_columns} columns need more shared memory than {e.device.name} has")
    n, kind = rows.n_columns, rows.kind
    ((address, _, y, n_rows, n_panels),) = matrices
    least = 1
    for n_group in sizes:
        n_stages = 2 if shared(n_group, 2) <= e.device.shared_bytes else 1
        most = n_group if n_group < sizes[-1] else 1 << 30
        e.launch(
            f"linear_heads__{tiles.kind}",
            (min(e.device.n_processors, n_panels), rows.heads, GridRows(kind, n_group)),
            512,
            *(kind, rows.x, n, address, y, n_rows, n_panels, tiles.stride, n_group, n_stages),
            shared=shared(n_group, n_stages),
            least=least,
            most=most,
            kind=kind,
            early=True,
        )
        least = most + 1
