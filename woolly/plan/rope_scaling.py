"""Rotary position embedding: parameters and frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from woolly.plan.exact_math import exact_log, exact_power

# Pairs of elements that rotate together: "neox" is (i, i + n_rot / 2), "adjacent" is (2i, 2i + 1), called "norm" in
# llama.cpp.
RopeStyle = Literal["adjacent", "neox"]
# Order of pairs in a rope with sections: "contiguous" has one run of pairs per section, "interleaved" takes one pair of
# each section in turn until they run out; remaining pairs belong to the first section.
SectionOrder = Literal["contiguous", "interleaved"]
# Frequencies of a rope with sections: "one" descending series over all pairs; "each" section has a separate series;
# "every": one series over all pairs, of which section s of n takes every n-th from the s-th on.
Spectrum = Literal["one", "each", "every"]


@dataclass(frozen=True)
class Rope:
    """Position embedding of some layers of a model.

    Linear scaling divides positions by `factor`. YaRN (`yarn=True`) divides only the slow
    frequencies, blends in between, and scales the magnitude of q and k.
    """

    head_dim: int
    n_rot: int  # leading elements of each head that are rotated
    base: float
    style: RopeStyle
    factor: float = 1.0
    yarn: bool = False
    extrapolation: float = 1.0  # YaRN's weight of the unscaled fast frequencies
    magnitude: float = 1.0  # extra factor on q and k
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_context: int = 0
    log_multiplier: float = 0.0  # YaRN's divisor of the magnitude; 0: none
    truncate: bool = True  # YaRN's range of blended pairs is rounded outwards
    # Number of pairs rotated by each of a row's positions (M-RoPE: time, line, column; a tower: line, column). If a
    # batch has only one position per row, it rotates all pairs.
    sections: tuple[int, ...] = ()
    order: SectionOrder = "contiguous"
    spectrum: Spectrum = "one"
    back: int = 0  # offset subtracted from the position, clamped at 0; negative: added
    inverse: bool = False  # rotate in the opposite direction

    def __str__(self) -> str:
        scaling = f" {'yarn' if self.yarn else 'linear'} x{self.factor:g}" if self.factor != 1.0 else ""
        sections = f" sections {'+'.join(map(str, self.sections))}" if self.sections else ""
        way = f"{f' back {self.back}' if self.back else ''}{' inverse' if self.inverse else ''}"
        return f"{self.style} {self.n_rot}/{self.head_dim} base {self.base:g}{scaling}{sections}{way}"


def rope_frequencies(
    rope: Rope, divisors: npt.NDArray[np.float32] | None = None
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the radians per position of each pair, and the magnitude that multiplies cos and sin.

    `divisors` are Llama 3's rope factors, one per pair, from the file's `rope_freqs` tensor. The tensor may also have
    factors for pairs that are not rotated.
    """
    pairs = np.arange(rope.n_rot // 2, dtype=np.float64)
    frequencies = -_spectrum(rope) if rope.inverse else _spectrum(rope)
    if divisors is not None:
        frequencies = frequencies / divisors[: len(pairs)].astype(np.float64)
    if not rope.yarn:
        return frequencies / rope.factor, rope.magnitude
    low, high = _correction_dim(rope, rope.beta_fast), _correction_dim(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(rope.n_rot - 1.0, high)
    fast = 1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
    mix = fast * rope.extrapolation
    magnitude = rope.magnitude
    if rope.factor > 1.0:
        log = 0.1 * exact_log(rope.factor)
        magnitude *= (1.0 + log) / (1.0 + rope.log_multiplier * log)
    return frequencies / rope.factor * (1.0 - mix) + frequencies * mix, magnitude


def rope_axes(rope: Rope) -> npt.NDArray[np.intp]:
    """Return the section (position axis) of each pair, or an empty array for a rope without sections."""
    if not rope.sections:
        return np.zeros(0, np.intp)
    n_pairs, n = rope.n_rot // 2, len(rope.sections)
    if rope.order == "interleaved":
        axes = [i % n if i < n * rope.sections[i % n] else 0 for i in range(n_pairs)]
    else:
        axes = [axis for axis, length in enumerate(rope.sections) for _ in range(length)]
    if len(axes) != n_pairs:
        raise ValueError(f"sections of {' + '.join(map(str, rope.sections))} pairs are not the {n_pairs} rotated pairs")
    return np.array(axes, np.intp)


def _spectrum(rope: Rope) -> npt.NDArray[np.float64]:
    """Return the radians per position of each pair, before any scaling."""
    if rope.spectrum == "one":
        return _powers(rope.base, rope.n_rot)
    n = len(rope.sections)
    if rope.spectrum == "every":
        powers = _powers(rope.base, rope.n_rot)
        return np.concatenate([powers[axis::n] for axis in range(n)])
    return np.concatenate([_powers(rope.base, 2 * length) for length in rope.sections])


@lru_cache(maxsize=64)
def _powers(base: float, n_rot: int) -> npt.NDArray[np.float64]:
    """Return base ** (-2 i / n_rot) for each pair i, correctly rounded.

    NumPy's power is not used because it differs between CPUs in the last bit: the angle at position 100,000 would then
    differ in its 36th bit, and about one of 5,000 table entries in its last bit.
    """
    if not 0.0 < base < math.inf:
        return base ** (-2.0 * np.arange(n_rot // 2, dtype=np.float64) / n_rot)  # NaN or infinity, as in the file
    powers = np.array([exact_power(base, -2.0 * i / n_rot) for i in range(n_rot // 2)], np.float64)
    powers.flags.writeable = False
    return powers


def _correction_dim(rope: Rope, rotations: float) -> float:
    """Return the index of the pair that makes `rotations` over the original context."""
    return rope.n_rot * exact_log(rope.original_context / (rotations * 2.0 * math.pi)) / (2.0 * exact_log(rope.base))
