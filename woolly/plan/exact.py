"""Logarithms, powers and softplus, rounded correctly, for numbers of a plan that decide bits of rows.

Not by C's library or NumPy, which differ in the last bit from system to system: by decimals of 40 digits.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

_DIGITS = 40
_MAX_DIGITS = 400  # 1 plus the least number of f64 has 324


def exact_log(x: float) -> float:
    """The natural logarithm of a number above 0."""
    if not 0.0 < x < math.inf:
        return math.log(x)  # whatever such a file asks for
    with localcontext() as context:
        context.prec = _DIGITS
        return float(Decimal(x).ln())


def exact_power(base: float, exponent: float) -> float:
    """A power of a number above 0."""
    with localcontext() as context:
        context.prec = _DIGITS
        return float(Decimal(base) ** Decimal(exponent))


def exact_softplus(x: float) -> float:
    """The logarithm of 1 + e^x."""
    if not math.isfinite(x):
        return max(x, 0.0)
    with localcontext() as context:
        # 1 + e^x has one digit more for each 2.3 that x is below 0.
        context.prec = min(_DIGITS + int(max(0.0, -x) / 2.3), _MAX_DIGITS)
        above = (1 + Decimal(-abs(x)).exp()).ln()
        return float(max(Decimal(x), Decimal(0)) + above)
