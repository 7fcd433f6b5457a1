"""Reproducible f64 functions for constants that affect result bits. See native/cpu/ops/f64_math.h.

The functions of C libraries and NumPy differ between systems. This module uses only operations with exact IEEE 754
rounding, in the order of the C++ code, so both compute the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_LN2_HEAD, _LN2_TAIL = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # ln 2 in two parts
_HALF_ROOT = float.fromhex("0x1.6a09e667f3bcdp-1")  # square root of 1/2


def _exp_series(r: Float64, whole: Float64) -> Float64:
    """Return e^r * 2^whole, for |r| <= ln(2) / 2."""
    total = np.ones_like(r)
    for n in range(13, 0, -1):
        total = 1.0 + total * r / n
    result: Float64 = np.ldexp(total, whole.astype(np.int32))
    return result


def exp_double(x: Float64) -> Float64:
    """Return e^x for |x| <= 700."""
    whole = np.floor(x / _LN2 + 0.5)
    return _exp_series((x - whole * _LN2_HEAD) - whole * _LN2_TAIL, whole)


def exp2_double(x: Float64) -> Float64:
    """Return 2^x for |x| <= 700, exact for integers."""
    whole = np.floor(x + 0.5)
    return _exp_series((x - whole) * _LN2, whole)


def log_double(x: Float64) -> Float64:
    """Return the natural logarithm of positive numbers."""
    part, power = np.frexp(x)
    is_small = part < _HALF_ROOT
    part, power = np.where(is_small, 2.0 * part, part), power - is_small
    f = part - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = np.zeros_like(z)
    for n in range(23, 2, -2):
        p = (p + 1.0 / n) * z
    result: Float64 = power * _LN2_HEAD + ((f - s * (f - 2.0 * p)) + power * _LN2_TAIL)
    return result


def alibi_slopes_f64(most: float, n_heads: int) -> Float32:
    """Return the ALiBi slope of each head. Heads beyond a power of two use the slopes in between."""
    powers = 1 << n_heads.bit_length() - 1
    between = (2.0 * np.arange(n_heads - powers) + 1) / (2.0 * powers)
    exponents = np.concatenate([np.arange(1, powers + 1) / powers, between])
    return exp2_double(-_as_float(most) * exponents).astype(np.float32)


def fades_of(slope: float, n_heads: int) -> Float32:
    """Return the decay per token of each head of lightning attention."""
    rates = exp2_double(-8.0 * np.arange(1, n_heads + 1) / n_heads)
    return exp_double(-_as_float(slope) * rates).astype(np.float32)


def _as_float(x: float) -> float:
    """Round to f32, as passed to C++."""
    return float(np.float32(x))
