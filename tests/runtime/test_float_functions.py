"""Functions of f64 that decide bits of rows: right to a unit of the last place, and buckets exact."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from woolly.runtime.f64_math import alibi_slopes_f64, exp2_double, exp_double, fades_of, log_double
from woolly.runtime.reference.ops import alibi_slopes, distance_buckets

RANDOM = np.random.default_rng(7)


def errors(found, exact, x):
    """Errors of the results in ulp."""
    with localcontext() as context:
        context.prec = 40
        pairs = zip(found.tolist(), x.tolist(), strict=True)
        return [abs(Decimal(y) - exact(Decimal(at))) / Decimal(float(np.spacing(abs(y)))) for y, at in pairs]


@pytest.mark.parametrize(
    ("function", "exact", "x"),
    [
        (exp_double, Decimal.exp, RANDOM.uniform(-30, 30, 300)),
        (exp2_double, lambda x: (x * Decimal(2).ln()).exp(), RANDOM.uniform(-20, 8, 300)),
        (log_double, Decimal.ln, np.concatenate([np.arange(2.0, 200), RANDOM.uniform(0.5, 2, 100)])),
    ],
)
def test_functions_are_accurate_to_about_one_ulp(function, exact, x):
    assert max(errors(function(x), exact, x)) < 1.1


def test_powers_of_two_are_exact():
    whole = np.arange(-40.0, 20)
    np.testing.assert_array_equal(exp2_double(whole), 2.0**whole)
    assert log_double(np.ones(1))[0] == 0


def test_as_floats_they_match_numpy():
    """Rows use the values rounded to f32: an error in f64 shows once in 2^28 times."""
    steps = np.arange(1.0, 4000)
    np.testing.assert_array_equal(np.float32(log_double(steps)), np.float32(np.log(steps)))
    for heads in (8, 12, 32, 40):
        np.testing.assert_array_equal(alibi_slopes_f64(8.0, heads), alibi_slopes(8.0, heads))
        fades = -float(np.float32(0.7)) * 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
        np.testing.assert_array_equal(fades_of(0.7, heads), np.float32(np.exp(fades)))
    assert alibi_slopes_f64(8.0, 8)[0] == 0.5


@pytest.mark.parametrize("sees_later", [True, False])
@pytest.mark.parametrize("n", [8, 20, 32, 64, 128])
def test_bucket_begins_at_an_integer(n, sees_later):
    """far^m single^j >= 128^j single^m, for the j-th of m buckets."""
    side = n // 2 if sees_later else n
    single = side // 2
    m = side - single
    found = distance_buckets(-np.arange(200), n, sees_later)
    for far in range(200):
        begun = (far**m * single**j >= 128**j * single**m for j in range(m))
        assert found[far] == (far if far < single else single + sum(begun) - 1), far
