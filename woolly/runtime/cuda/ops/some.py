"""Products of 9 to 32 rows: which kernel takes how many, and how many tiles are under way in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woolly.runtime.cuda.ops.few import max_few_rows
from woolly.runtime.cuda.ops.products import Finish, Input, Matrices, flat, tile_bytes
from woolly.runtime.cuda.tiles import Tiles
from woolly.runtime.gpu.emit import Emitter

# Generations that have these kernels: their registers and shared memory hold enough, and blocks work in pairs.
_GENERATIONS = (90,)
_WIDTHS = (16, 32)
# By rows and whether a slice is one tile: whether blocks work in pairs, strips of a block in a round, places of their
# sums, tiles that a warp has under way, and those that it asks for before the rows.
_CHOSEN = {
    (16, True): (False, 4, 2, 2, 1),
    (16, False): (True, 2, 1, 2, 1),
    (32, True): (True, 2, 2, 4, 2),
}
# Longer rows have wgmma from 17 rows on, and so have matrices of more strips for each multiprocessor.
_MAX_STRIPS = 8


@dataclass(frozen=True)
class _Form:
    """How a kernel of linear_some.cu works."""

    width: int
    is_kept: bool  # slices are one tile
    team: int  # blocks that share strips
    n_held: int  # strips of a round
    n_places: int  # of the sums of a round
    n_stages: int  # tiles that a warp has under way
    n_early: int  # of them, asked for before the rows

    def shared(self, n_bytes: int) -> int:
        """Shared memory of a block, with tiles of that many bytes."""
        n_warps = 16 // self.team
        sums = self.n_places * self.n_held * n_warps * self.width * 64
        return 2048 + sums + n_warps * self.n_stages * n_bytes


def _forms(e: Emitter, rows: Input, tiles: Tiles) -> list[_Form]:
    """Kernels for these rows: none if there are fewer tiles than slices."""
    if rows.n_tiles < 16 or e.device.kernels_for not in _GENERATIONS:
        return []
    is_kept = rows.n_tiles == 16 and rows.n_columns % 4 == 0
    out = []
    for width in _WIDTHS:
        has_many = tiles.n_strips > _MAX_STRIPS * e.device.n_processors
        if width > _WIDTHS[0] and (has_many or not is_kept):
            break
        is_pair, max_held, n_places, max_stages, n_early = _CHOSEN[width, is_kept]
        team = 2 if is_pair and e.device.kernels_for == 90 else 1
        forms = (
            _Form(width, is_kept, team, n_held * team, n_places, n_stages, n_early)
            for n_held in (max_held, max_held // 2)
            for n_stages in range(max_stages, max_stages - 1 - is_pair, -1)
        )
        out += [form for form in forms if form.shared(tile_bytes(tiles)) <= e.device.shared_bytes][:1]
    return out


def max_some_rows(e: Emitter, rows: Input, tiles: Tiles) -> int:
    """The most rows that these kernels or those of fewer rows take."""
    return max((form.width for form in _forms(e, rows, tiles)), default=max_few_rows(e, rows, tiles))


def some_rows(e: Emitter, rows: Input, tiles: Tiles, matrices: Matrices, finish: Finish, kind: str = "") -> None:
    """Launches for the rows that are too many for few_rows. `tiles` and `kind` as there."""
    tile, bias, y, n_rows, strips = (flat(matrices)[i::5] for i in range(5))
    kind, least = kind or tiles.kind, max_few_rows(e, rows, tiles) + 1
    for form in _forms(e, rows, tiles):
        halves = e.scratch("linears halves", rows.n_tiles * 512 * form.width)
        backs = e.scratch("linears few backs", 4 * form.width)
        arrivals = e.array("linears arrivals", 8, lambda: np.zeros(2, np.uint32))
        # What the first fetches need comes first.
        first = (tile[0], strips[0], rows.n_columns, tile[1], strips[1], form.n_stages, tile[2], strips[2])
        middle = (form.n_early, form.n_held, form.n_places, rows.kind, rows.x, rows.norm, rows.eps)
        e.launch(
            f"linear_some__{kind}_{form.width}{'_kept' * form.is_kept}",
            min(e.device.n_processors // form.team, sum(m[4] for m in matrices)) * form.team,
            512 // form.team,
            *(*first, *middle, halves, backs, arrivals, *n_rows, *bias, *y, *finish.args),
            shared=form.shared(tile_bytes(tiles)),
            least=least,
            most=form.width,
            kind=rows.kind,
            early=True,
            group=form.team,
        )
        least = form.width + 1
