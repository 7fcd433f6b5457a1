"""Products of 9 to 32 rows: choice of the kernel and its pipeline depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woolly.runtime.cuda.ops.linear_arguments import EpilogueParams, Input, Matrices, flat, tile_bytes
from woolly.runtime.cuda.ops.linear_rows8 import max_rows8
from woolly.runtime.cuda.weight_tiles import Tiles
from woolly.runtime.gpu.emitter import Emitter

# Architectures with enough registers and shared memory for these kernels.
_GENERATIONS = (90,)
_WIDTHS = (16, 32)
# (rows, slices are one tile) -> (blocks in pairs, panels per round and block, buffers of sums, tiles in flight per
# warp, tiles prefetched before the rows).
_FORMS = {
    (16, True): (False, 4, 2, 2, 1),
    (16, False): (True, 2, 1, 2, 1),
    (32, True): (True, 2, 2, 4, 2),
}
# From 17 rows on, WGMMA computes longer rows, and matrices with more panels per multiprocessor.
_MAX_PANELS = 8


@dataclass(frozen=True)
class _Form:
    """Launch configuration of a kernel of linear_rows32.cu."""

    width: int
    in_registers: bool  # each slice is one tile
    team: int  # blocks that share panels
    panels_per_round: int  # panels per round
    n_buffers: int  # buffers for the sums of a round
    n_stages: int  # tiles in flight per warp
    n_early: int  # tiles prefetched before the rows

    def shared(self, n_bytes: int) -> int:
        """Return the shared memory of a block, given the tile size in bytes."""
        n_warps = 16 // self.team
        sums = self.n_buffers * self.panels_per_round * n_warps * self.width * 64
        return 2048 + sums + n_warps * self.n_stages * n_bytes


def _forms(e: Emitter, rows: Input, tiles: Tiles) -> list[_Form]:
    """Return the configurations for these rows, or [] if there are fewer tiles than slices."""
    if rows.n_tiles < 16 or e.device.kernels_for not in _GENERATIONS:
        return []
    in_registers = rows.n_tiles == 16 and rows.n_columns % 4 == 0
    out = []
    for width in _WIDTHS:
        has_many = tiles.n_panels > _MAX_PANELS * e.device.n_processors
        if width > _WIDTHS[0] and (has_many or not in_registers):
            break
        is_pair, max_panels_per_round, n_buffers, max_stages, n_early = _FORMS[width, in_registers]
        team = 2 if is_pair and e.device.kernels_for == 90 else 1
        forms = (
            _Form(width, in_registers, team, panels_per_round * team, n_buffers, n_stages, n_early)
            for panels_per_round in (max_panels_per_round, max_panels_per_round // 2)
            for n_stages in range(max_stages, max_stages - 1 - is_pair, -1)
        )
        out += [form for form in forms if form.shared(tile_bytes(tiles)) <= e.device.shared_bytes][:1]
    return out


def max_rows32(e: Emitter, rows: Input, tiles: Tiles) -> int:
    """Return the maximum rows of the kernels of linear_rows8.py and linear_rows32.py."""
    return max((form.width for form in _forms(e, rows, tiles)), default=max_rows8(e, rows, tiles))


def launch_rows32(
    e: Emitter, rows: Input, tiles: Tiles, matrices: Matrices, epi: EpilogueParams, kind: str = ""
) -> None:
    """Launch the kernels for more rows than `launch_rows8` supports. `tiles` and `kind` are as in `launch_rows8`."""
    tile, bias, y, n_rows, panels = (flat(matrices)[i::5] for i in range(5))
    kind, least = kind or tiles.kind, max_rows8(e, rows, tiles) + 1
    for form in _forms(e, rows, tiles):
        x_f16 = e.scratch("linears halves", rows.n_tiles * 512 * form.width)
        inv_scales = e.scratch("linears few backs", 4 * form.width)
        arrivals = e.array("linears arrivals", 8, lambda: np.zeros(2, np.uint32))
        # Arguments of the first fetches come first.
        first = (tile[0], panels[0], rows.n_columns, tile[1], panels[1], form.n_stages, tile[2], panels[2])
        middle = (form.n_early, form.panels_per_round, form.n_buffers, rows.kind, rows.x, rows.norm, rows.eps)
        e.launch(
            f"linear_rows32__{kind}_{form.width}{'_regs' * form.in_registers}",
            min(e.device.n_processors // form.team, sum(m[4] for m in matrices)) * form.team,
            512 // form.team,
            *(*first, *middle, x_f16, inv_scales, arrivals, *n_rows, *bias, *y, *epi.args),
            shared=form.shared(tile_bytes(tiles)),
            least=least,
            most=form.width,
            kind=rows.kind,
            early=True,
            group=form.team,
        )
        least = form.width + 1
