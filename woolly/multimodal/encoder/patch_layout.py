"""PatchLayout: order of the patches of one grid, the input of an encoder plan."""

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
    """Rows of an encoder batch and their results.

    An encoder with several stages has one layout per stage. The first stage reads patches, later stages read results of
    the previous stage.
    """

    # [n_rows]: patch of each row, indexed in raster order; -1: no patch. [n_rows, n]: several patches per row,
    # concatenated as input of a convolution; -1: zeros.
    order: Int32
    outputs: Int32  # indices of rows with results, ascending
    results: Int32 | None = None  # result of each prompt row in raster order; None: in order
    # Same fields as in `Batch`, per row.
    rope_positions: Int32 | None = None
    attn_ranges: Int32 | None = None
    gather_rows: Int32 | None = None
    gather_weights: npt.NDArray[np.float32] | None = None
    unit: int = 0  # numbers per index of `order`; 0: a complete patch
    is_text: bool = False  # True if rows read tokens

    def gather(self, values: npt.NDArray[np.float32], first: int, last: int) -> npt.NDArray[np.float32]:
        """Gather the inputs of rows `first` to `last` from patches or from results of the previous stage."""
        units = values.reshape(-1, self.unit) if self.unit else values
        order = self.order[first:last]
        out = units[np.maximum(order, 0)]
        out[order < 0] = 0.0
        return np.ascontiguousarray(out.reshape(len(order), -1))


def merge_order(grid: Grid, side: int) -> Int32:
    """Return the patches by side x side blocks: blocks in raster order, patches in raster order within a block."""
    frames, height, width = grid
    patches = np.arange(frames * height * width, dtype=np.int32)
    blocks = patches.reshape(frames, height // side, side, width // side, side).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(blocks).reshape(-1)


def position_ids(grid: Grid, order: Int32) -> Int32:
    """Return the line and the column of each row's patch, [2, n_rows]."""
    _, height, width = grid
    return np.stack([order // width % height, order % width]).astype(np.int32)


def bilinear_pos_embed(grid: Grid, order: Int32, side: int) -> tuple[Int32, npt.NDArray[np.float32]]:
    """Return indices and weights, [n_rows, 4], to interpolate a side x side position table with aligned corners."""
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
    """Return indices and weights, [n_rows, taps], to interpolate a side x side position table.

    Equals torch's `interpolate` without `align_corners`; "antialiased" is its bilinear kernel, which widens when it
    shrinks. `margin` is added to each side when the scale factor is computed, as some models do to avoid rounding
    errors.
    """
    gather_rows = np.full((len(order), taps), -1, np.int32)
    gather_weights = np.zeros((len(order), taps), np.float32)
    lines, columns = position_ids(grid, order)
    (down, down_share), (along, along_share) = (_axis(length, side, kernel, margin) for length in grid[1:])
    n = down.shape[1] * along.shape[1]
    if n > taps:
        raise ValueError(
            f"a grid of {grid[1]} x {grid[2]} patches needs {n} table entries per patch; the maximum is {taps}"
        )
    gather_rows[:, :n] = (down[lines][:, :, None] * side + along[columns][:, None, :]).reshape(-1, n)
    gather_weights[:, :n] = (down_share[lines][:, :, None] * along_share[columns][:, None, :]).reshape(-1, n)
    return gather_rows, gather_weights


def _axis(
    length: int, side: int, kernel: Kernel, margin: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return indices along an axis of the table and their weights, [length, taps] each."""
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
