"""Bit-reproducible sines, cosines, powers and products. Every sum is computed in a fixed order.

NumPy uses the CPU's vector units and BLAS, so the last bits of its results depend on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

# Pi / 2 in three parts. The first two have 33 bits, so products with integers are exact.
_QUARTER = (float.fromhex("0x1.921fb544p+0"), float.fromhex("0x1.0b4611a6p-34"), float.fromhex("0x1.3198a2e037073p-69"))
_TERMS = 9  # terms per series; up to an eighth of a turn, the next term is below 1e-19


def sines(angles: Float64) -> tuple[Float64, Float64]:
    """Return sines and cosines of angles up to a million quarter turns."""
    quarters = np.rint(angles / _QUARTER[0])
    left = ((angles - quarters * _QUARTER[0]) - quarters * _QUARTER[1]) - quarters * _QUARTER[2]
    square = left * left
    sine, cosine = np.ones_like(left), np.ones_like(left)
    for i in range(_TERMS, 0, -1):
        sine = 1.0 - square / (2 * i * (2 * i + 1)) * sine
        cosine = 1.0 - square / (2 * i * (2 * i - 1)) * cosine
    sine = sine * left
    quadrant = quarters.astype(np.int64) % 4
    out = np.choose(quadrant, [sine, cosine, -sine, -cosine])
    return out, np.choose(quadrant, [cosine, -sine, -cosine, sine])


def product(a: Float64, b: Float64) -> Float64:
    """Return a @ b for [n, k] and [k, ...], summed in the order of k."""
    out = np.zeros((len(a), *b.shape[1:]))
    for column, row in zip(a.T, b, strict=True):
        out += np.multiply.outer(column, row)
    return out


def powers(base: int, exponents: Sequence[Fraction]) -> Float64:
    """Return the base raised to each exponent, rounded once."""
    with localcontext() as context:
        context.prec = 30
        return np.array([float(Decimal(base) ** (Decimal(one.numerator) / one.denominator)) for one in exponents])
