"""Another rate of samples: a sinc under Kaiser's window, with equal results wherever an audio clip is computed."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# The filter reaches 64 zeros of the sinc to each side. It passes what is below 0.90 of the lower of the two limits
# (half of a rate), halves 0.95 of it, and is 100 dB down at the limit: beta 10 and 64 zeros give that transition.
_ZEROS = 64
_CUT = 0.95
_BETA = 10.0
_FINE = 1024  # steps from one zero to the next

_BLOCK = 1 << 16  # results that are computed at once


def resample(samples: Float32, rate: int, wanted: int) -> Float32:
    """Returns the audio with `wanted` samples per second; there is silence before and after it."""
    if rate == wanted:
        return samples
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    n = -(-len(samples) * up // down)
    stretch = max(1.0, down / up) / _CUT  # input samples from one zero of the filter to the next
    reach = math.ceil(_ZEROS * stretch)
    padded = np.concatenate([np.zeros(reach, np.float32), samples, np.zeros(reach + down, np.float32)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    out = np.empty(n, np.float32)
    # Results n, n + up, n + 2 up, ... lie at the same place between two samples: they share their filter.
    for phase in range(min(up, n)):
        first, between = divmod(phase * down, up)
        taps = _taps(between / up, stretch, reach)
        own, its_windows = out[phase::up], windows[first::down]
        for begin in range(0, len(own), _BLOCK):
            part = its_windows[begin : min(begin + _BLOCK, len(own))]
            own[begin : begin + _BLOCK] = np.einsum("ij,j->i", part, taps)
    return out


def _taps(between: float, stretch: float, reach: int) -> Float32:
    """Returns the filter for a result that lies `between` two samples: one number for each sample in reach."""
    at = np.minimum(np.abs(np.arange(-reach, reach + 1) - between) * (_FINE / stretch), _ZEROS * _FINE)
    low, kernel = at.astype(np.intp), _kernel()
    taps = kernel[low] + (kernel[low + 1] - kernel[low]) * (at - low)
    out: Float32 = (taps / taps.sum()).astype(np.float32)
    return out


@cache
def _kernel() -> npt.NDArray[np.float64]:
    """Returns half of the filter, at steps so fine that a line between two of them is within 5e-7; then zeros."""
    at = np.arange(_ZEROS * _FINE) / _FINE
    half = np.sinc(at) * np.i0(_BETA * np.sqrt(1 - (at / _ZEROS) ** 2)) / np.i0(_BETA)
    return np.concatenate([half, np.zeros(2)])
