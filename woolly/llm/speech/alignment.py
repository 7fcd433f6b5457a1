"""Alignment: when each token of a Whisper model's text is spoken, by where some heads of the decoder look.

Heads that follow the audio are known of the published models; of others, all heads of the later half of the layers
are taken, as the published implementation does. Weights are normalized over tokens and smoothed over time, and the
cheapest way through the matrix of tokens and rows (dynamic time warping) is the time of each token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_MEDIAN_WIDTH = 7  # rows of the median around each

# Layer and heads of the models that OpenAI published, by their layers of decoder and encoder, and what tells those of
# equal sizes apart: English alone, or the number of bins of the spectrogram.
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
    """Layer and head of each that follows the audio; all of the later half of the layers if the model is not known."""
    kind = "en" if is_english else "v1" if re.search(r"large-v1", name) else str(n_mels)
    known = _PUBLISHED.get((n_decoder, n_encoder, kind)) if _HEADS.get((n_decoder, n_encoder)) == heads else None
    if known is None:
        return tuple((layer, head) for layer in range(n_decoder // 2, n_decoder) for head in range(heads))
    parts = (part.split(":") for part in known.split())
    return tuple((int(layer), int(head)) for layer, listed in parts for head in listed.split(","))


def align(scores: Sequence[Float32], skips: int) -> Int64:
    """The row at which each token begins.

    `scores` are those of each head, [tokens, rows], before softmax; the first `skips` tokens and the last one count in
    the norm, and are not aligned.
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
    rows, columns = dtw(-total[skips:-1] / len(scores))
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return columns[first]


def _median_filter(weights: Float64) -> Float64:
    """The median of the rows around each; what is beyond the ends mirrors them."""
    beside = _MEDIAN_WIDTH // 2
    if weights.shape[1] <= beside:
        return weights
    padded = np.pad(weights, ((0, 0), (beside, beside)), mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_WIDTH, axis=1)
    out: Float64 = np.partition(around, beside, axis=2)[:, :, beside]
    return out


def dtw(cost: Float64) -> tuple[Int64, Int64]:
    """The cheapest way from the first cell to the last, by steps of one token, one row or both: its cells in order.

    Cells of one diagonal do not depend on each other, so each is one operation.
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
    way: list[tuple[int, int]] = []
    at, to = n, m
    while at > 0 or to > 0:
        way.append((at - 1, to - 1))
        taken = step[at, to]
        at, to = at - (taken != 2), to - (taken != 1)
    found = np.array(way[::-1], np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
