"""Order of the patches of one grid in a tower: the data of a plan that knows no grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Grid = tuple[int, int, int]
Kernel = Literal["bilinear", "bicubic", "antialiased"]


@dataclass(frozen=True, eq=False)
class PatchLayout:
    """The rows of a tower's batch, and what becomes of them.

    A tower of several stages has one for each: what is a patch to the first is a result of the stage before to others.
    """

    # [n_rows]: the patch of each row, as pieces number them, line by line; -1: a row without one. [n_rows, n]: patches
    # that stand side by side, as a convolution reads them; -1: zeros.
    order: Int32
    outputs: Int32  # the rows from which results are made, ascending
    results: Int32 | None = None  # the result of each row of the prompt, line by line; None: in order
    # As `Batch` has them, in the order of the rows.
    rope_positions: Int32 | None = None
    attn_ranges: Int32 | None = None
    gather_rows: Int32 | None = None
    gather_weights: npt.NDArray[np.float32] | None = None
    unit: int = 0  # numbers of what `order` counts; 0: patches
    is_text: bool = False  # what rows read are tokens

    def gather(self, values: npt.NDArray[np.float32], first: int, last: int) -> npt.NDArray[np.float32]:
        """What the rows from `first` to `last` read of patches, or of results of the stage before."""
        units = values.reshape(-1, self.unit) if self.unit else values
        order = self.order[first:last]
        out = units[np.maximum(order, 0)]
        out[order < 0] = 0.0
        return np.ascontiguousarray(out.reshape(len(order), -1))


def merge_order(grid: Grid, side: int) -> Int32:
    """Patches by blocks of side x side, line by line of blocks, and line by line within each."""
    frames, height, width = grid
    patches = np.arange(frames * height * width, dtype=np.int32)
    blocks = patches.reshape(frames, height // side, side, width // side, side).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(blocks).reshape(-1)


def position_ids(grid: Grid, order: Int32) -> Int32:
    """[2, n_rows]: the line and the column of each row's patch."""
    _, height, width = grid
    return np.stack([order // width % height, order % width]).astype(np.int32)


def bilinear_pos_embed(grid: Grid, order: Int32, side: int) -> tuple[Int32, npt.NDArray[np.float32]]:
    """Places in a table of side x side positions, and shares, [n_rows, 4]: the table stretched to the corners."""
    gather_rows: list[npt.NDArray[np.int64]] = []
    gather_weights: list[npt.NDArray[np.float32]] = []
    near: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []
    for length, at in zip(grid[1:], position_ids(grid, order), strict=True):
        exact = np.linspace(0, side - 1, length, dtype=np.float32)[at]
        low = exact.astype(np.int64)
        near.append((low, np.minimum(low + 1, side - 1), exact - low.astype(np.float32)))
    (top, bottom, down), (left, right, along) = near
    for line, share in ((top, 1 - down), (bottom, down)):
        for column, part in ((left, 1 - along), (right, along)):
            gather_rows.append(line * side + column)
            gather_weights.append((share * part).astype(np.float32))
    return np.stack(gather_rows, 1).astype(np.int32), np.stack(gather_weights, 1)


def interpolate_pos_embed(
    grid: Grid, order: Int32, side: int, kernel: Kernel, taps: int, margin: float = 0.0
) -> tuple[Int32, npt.NDArray[np.float32]]:
    """Places in a table of side x side positions, and shares, [n_rows, taps]: the table resized over whole cells.

    As torch's `interpolate` without `align_corners`; "antialiased" is its bilinear kernel that widens as it shrinks.
    A `margin` is by how much longer the factor takes each side to be, which some models add against rounding.
    """
    gather_rows = np.full((len(order), taps), -1, np.int32)
    gather_weights = np.zeros((len(order), taps), np.float32)
    lines, columns = position_ids(grid, order)
    (down, down_share), (along, along_share) = (_axis(length, side, kernel, margin) for length in grid[1:])
    n = down.shape[1] * along.shape[1]
    if n > taps:
        raise ValueError(f"a grid of {grid[1]} x {grid[2]} patches takes {n} places of a table, of at most {taps}")
    gather_rows[:, :n] = (down[lines][:, :, None] * side + along[columns][:, None, :]).reshape(-1, n)
    gather_weights[:, :n] = (down_share[lines][:, :, None] * along_share[columns][:, None, :]).reshape(-1, n)
    return gather_rows, gather_weights


def _axis(
    length: int, side: int, kernel: Kernel, margin: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """[length, taps] each: the places of a table's axis that each of `length` cells is made of, and how much."""
    scale = side / (length + margin)
    wide = max(scale, 1.0) if kernel == "antialiased" else 1.0
    centre = (np.arange(length) + 0.5) * scale - 0.5
    if kernel == "bilinear":
        centre = np.maximum(centre, 0.0)
    reach = 2.0 if kernel == "bicubic" else wide
    first = np.floor(centre - reach).astype(np.int64) + 1
    gather_rows = first[:, None] + np.arange(2 * int(np.ceil(reach)))
    apart = np.abs(gather_rows - centre[:, None]) / wide
    if kernel == "bicubic":
        near = (1.25 * apart - 2.25) * apart**2 + 1
        gather_weights = np.where(apart <= 1, near, ((-0.75 * apart + 3.75) * apart - 6.0) * apart + 3.0)
    else:
        gather_weights = np.maximum(1.0 - apart, 0.0)
    if kernel == "antialiased":
        gather_weights[(gather_rows < 0) | (gather_rows >= side)] = 0.0
        gather_weights /= gather_weights.sum(axis=1, keepdims=True)
    return np.clip(gather_rows, 0, side - 1), gather_weights
