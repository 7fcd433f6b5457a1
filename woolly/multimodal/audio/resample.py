"""Resampling with a Kaiser-windowed sinc filter, with equal results on all machines."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

# 64 zero crossings per side, Kaiser beta 10: pass band up to 0.90 of the lower Nyquist frequency, -6 dB at 0.95, stop
# band of -100 dB from the Nyquist frequency.
_ZERO_CROSSINGS = 64
_ROLLOFF = 0.95
_BETA = 10.0
_OVERSAMPLING = 1024  # filter table entries per zero crossing

_BLOCK = 1 << 16  # output samples per einsum


def resample(samples: Float32, rate: int, target_rate: int) -> Float32:
    """Return the audio at `target_rate`, with zero padding at both ends."""
    if rate == target_rate:
        return samples
    common = math.gcd(rate, target_rate)
    up, down = target_rate // common, rate // common
    n = -(-len(samples) * up // down)
    stretch = max(1.0, down / up) / _ROLLOFF  # input samples per zero crossing
    reach = math.ceil(_ZERO_CROSSINGS * stretch)
    padded = np.concatenate([np.zeros(reach, np.float32), samples, np.zeros(reach + down, np.float32)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    out = np.empty(n, np.float32)
    # Output samples n, n + up, n + 2 up, ... have the same phase and share a filter.
    for phase in range(min(up, n)):
        first, between = divmod(phase * down, up)
        taps = _taps(between / up, stretch, reach)
        own, its_windows = out[phase::up], windows[first::down]
        for begin in range(0, len(own), _BLOCK):
            part = its_windows[begin : min(begin + _BLOCK, len(own))]
            own[begin : begin + _BLOCK] = np.einsum("ij,j->i", part, taps)
    return out


def _taps(between: float, stretch: float, reach: int) -> Float32:
    """Return the filter taps of a phase, one per input sample. `between` is the fraction of a sample."""
    at = np.minimum(
        np.abs(np.arange(-reach, reach + 1) - between) * (_OVERSAMPLING / stretch), _ZERO_CROSSINGS * _OVERSAMPLING
    )
    low, kernel = at.astype(np.intp), _kernel()
    taps = kernel[low] + (kernel[low + 1] - kernel[low]) * (at - low)
    out: Float32 = (taps / taps.sum()).astype(np.float32)
    return out


@cache
def _kernel() -> npt.NDArray[np.float64]:
    """Return half of the filter table. Linear interpolation has an error of at most 5e-7."""
    at = np.arange(_ZERO_CROSSINGS * _OVERSAMPLING) / _OVERSAMPLING
    half = np.sinc(at) * np.i0(_BETA * np.sqrt(1 - (at / _ZERO_CROSSINGS) ** 2)) / np.i0(_BETA)
    return np.concatenate([half, np.zeros(2)])
