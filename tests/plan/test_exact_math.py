"""Numbers of a plan that decide bits of rows: rounded correctly, at any size."""

import math
from decimal import Decimal, localcontext

import pytest

from woolly.plan.exact_math import exact_log, exact_power, exact_softplus


def neighbours(x):
    return math.nextafter(x, -math.inf), x, math.nextafter(x, math.inf)


@pytest.mark.parametrize("x", [1e-300, 0.3, 1.0, 2, 40.0, 1e300])
def test_logarithm_is_within_one_ulp_of_c(x):
    assert exact_log(x) in neighbours(math.log(x))
    assert exact_power(x, 0.7) in neighbours(x**0.7)


@pytest.mark.parametrize("x", [-1e30, -745.0, -700.0, -40.0, -1e-9, 0.0, 0.3, 40.0, 1e30])
def test_softplus_keeps_its_digits_for_small_values(x):
    assert exact_softplus(x) in neighbours(math.log1p(math.exp(-abs(x))) + max(x, 0.0))


def test_softplus_is_correctly_rounded_with_few_digits():
    with localcontext() as context:
        context.prec = 400
        for x in (-744.3, -300.7, -92.1, -12.5, -0.7, 3.3, 50.0):
            assert exact_softplus(x) == float(max(Decimal(x), Decimal(0)) + (1 + Decimal(-abs(x)).exp()).ln())


def test_numbers_of_broken_files_do_not_stop_it():
    assert [exact_softplus(x) for x in (-math.inf, math.inf)] == [0.0, math.inf]
    assert exact_log(math.inf) == math.inf
    with pytest.raises(ValueError, match=r"domain|positive|expected"):
        exact_log(-1.0)
