"""Correctly rounded log, power and softplus, for constants of a plan that affect result bits.

Values are computed with 40 decimal digits, because C libraries and NumPy differ in the last bit between systems.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

_DIGITS = 40
_MAX_DIGITS = 400  # 1 plus the smallest f64 has 324 digits


def exact_log(x: float) -> float:
    """Return the natural logarithm of a positive number."""
    if not 0.0 < x < math.inf:
        return math.log(x)  # infinity or NaN if the file has such a value
    with localcontext() as context:
        context.prec = _DIGITS
        return float(Decimal(x).ln())


def exact_power(base: float, exponent: float) -> float:
    """Return a power of a positive number."""
    with localcontext() as context:
        context.prec = _DIGITS
        return float(Decimal(base) ** Decimal(exponent))


def exact_softplus(x: float) -> float:
    """Return log(1 + e^x)."""
    if not math.isfinite(x):
        return max(x, 0.0)
    with localcontext() as context:
        # 1 + e^x needs one more digit for every 2.3 that x is below 0.
        context.prec = min(_DIGITS + int(max(0.0, -x) / 2.3), _MAX_DIGITS)
        above = (1 + Decimal(-abs(x)).exp()).ln()
        return float(max(Decimal(x), Decimal(0)) + above)
