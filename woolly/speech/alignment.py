"""Token alignment for Whisper with cross-attention weights and dynamic time warping (DTW).

Published models have known alignment heads; other models use all heads of the second half of the decoder layers, as in
openai-whisper. Weights are normalized over tokens, median-filtered over time and averaged over heads. DTW through the
matrix [tokens, encoder rows] gives the time of each token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_MEDIAN_WIDTH = 7  # encoder rows

# Alignment heads ("layer:heads") of OpenAI's models, by number of decoder and encoder layers. The third key
# distinguishes models of equal size: English-only, large-v1, or the number of mel bins.
_PUBLISHED = {
    (4, 4, "en"): "1:0 2:0,5 3:0,1,2,3,4",
    (4, 4, "80"): "2:2 3:0,2,3,4,5",
    (6, 6, "en"): "3:3 4:7 5:1,5,7",
    (6, 6, "80"): "3:1 4:2,3,7 5:1,2,4,6",
    (12, 12, "en"): "6:6 7:0,3,8 8:2,5,7 9:0,4,8,10 10:0,1,2,3,6,11 11:2,4",
    (12, 12, "80"): "5:3,9 8:0,4,7,8 9:0,7,9 10:5",
    (24, 24, "en"): "11:4 14:1,12,14 15:4 16:0,4,9 17:12,14 18:7,10,15 20:0,3,9,14 21:12",
    (24, 24, "80"): "13:15 15:4,15 16:1 20:0 23:4",
    (32, 32, "v1"): "9:19 11:2,4,17 22:7,11,17 23:2,15",
    (32, 32, "80"): "10:12 13:17 16:11,12,13 17:15,16 18:4,11,19 19:11 21:2,3 22:3,9,12 23:5,7,13 25:5 26:1,12 27:15",
    (32, 32, "128"): "7:0 10:17 12:18 13:12 16:1 17:14 19:11 21:4 24:1 25:6",
    (4, 32, "128"): "2:4,11 3:3,6,11,14",
}
_HEADS = {(4, 4): 6, (6, 6): 8, (12, 12): 12, (24, 24): 16, (32, 32): 20, (4, 32): 20}


def alignment_heads(
    n_decoder: int, n_encoder: int, heads: int, n_mels: int, *, is_english: bool, name: str
) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) of each alignment head; for unknown models all heads in the second half of the layers."""
    kind = "en" if is_english else "v1" if re.search(r"large-v1", name) else str(n_mels)
    known = _PUBLISHED.get((n_decoder, n_encoder, kind)) if _HEADS.get((n_decoder, n_encoder)) == heads else None
    if known is None:
        return tuple((layer, head) for layer in range(n_decoder // 2, n_decoder) for head in range(heads))
    parts = (part.split(":") for part in known.split())
    return tuple((int(layer), int(head)) for layer, listed in parts for head in listed.split(","))


def align(scores: Sequence[Float32], n_skipped: int) -> Int64:
    """Return the encoder row at which each token begins.

    `scores` has a matrix [tokens, rows] per head, before softmax. The first `n_skipped` tokens and the last token are
    only used for normalization.
    """
    total: Float64 | None = None
    for one in scores:
        weights = np.exp((one - one.max(axis=1, keepdims=True)).astype(np.float64))
        weights /= weights.sum(axis=1, keepdims=True)
        spread = weights.std(axis=0)
        weights = (weights - weights.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        weights = _median_filter(weights)
        total = weights if total is None else total + weights
    assert total is not None
    rows, columns = dtw(-total[n_skipped:-1] / len(scores))
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return columns[first]


def _median_filter(weights: Float64) -> Float64:
    """Return the running median over encoder rows, with reflection at the ends."""
    half = _MEDIAN_WIDTH // 2
    if weights.shape[1] <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (half, half)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_WIDTH, axis=1)
    out: Float64 = np.partition(windows, half, axis=2)[:, :, half]
    return out


def dtw(cost: Float64) -> tuple[Int64, Int64]:
    """Return the path of lowest cost through [tokens, rows], as token and row indices (dynamic time warping).

    The cells of an antidiagonal are independent, so each antidiagonal is a single NumPy operation.
    """
    n, m = cost.shape
    best = np.full((n + 1, m + 1), np.inf)
    best[0, 0] = 0.0
    step = np.full((n + 1, m + 1), 2, np.int8)
    step[:, 0] = 1
    step[0, :] = 2
    for diagonal in range(2, n + m + 1):
        i = np.arange(max(1, diagonal - m), min(n, diagonal - 1) + 1)
        j = diagonal - i
        both, down, along = best[i - 1, j - 1], best[i - 1, j], best[i, j - 1]
        is_both = (both < down) & (both < along)
        is_down = ~is_both & (down < both) & (down < along)
        best[i, j] = cost[i - 1, j - 1] + np.where(is_both, both, np.where(is_down, down, along))
        step[i, j] = np.where(is_both, 0, np.where(is_down, 1, 2))
    path: list[tuple[int, int]] = []
    at, to = n, m
    while at > 0 or to > 0:
        path.append((at - 1, to - 1))
        taken = step[at, to]
        at, to = at - (taken != 2), to - (taken != 1)
    found = np.array(path[::-1], np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
