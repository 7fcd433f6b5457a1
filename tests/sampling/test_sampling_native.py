"""The native helpers give what NumPy and plain loops give, ties and sick rows included."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woolly._native import draw, largest, log_sum_exp, mask, repeat_lengths, weigh

# Few values, so that many are equal; both zeros, which are.
ties = st.lists(st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1.0, 1e30]), min_size=1, max_size=300)
plain = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=300)


def top(row, k):
    ids, values = np.empty(k, np.int32), np.empty(k, np.float32)
    return largest(row, ids, values), ids, values


@given(st.one_of(ties, plain), st.data())
def test_largest_is_a_stable_sort_cut_off(values, data):
    row = np.array(values, np.float32)
    k = data.draw(st.integers(1, len(row)))
    found, ids, kept = top(row, k)
    assert found == (row.max() > -np.inf)
    if found:
        np.testing.assert_array_equal(ids, np.argsort(-row, kind="stable")[:k])
        np.testing.assert_array_equal(kept, row[ids])


@pytest.mark.parametrize("k", [1, 40, 1000, 3073, 49152])
@pytest.mark.parametrize("order", ["random", "ascending", "descending", "equal"])
def test_largest_of_a_complete_vocabulary(k, order):
    row = np.random.RandomState(k).randint(0, 5000, 49152).astype(np.float32)
    if order != "random":
        row = {"ascending": np.sort(row), "descending": -np.sort(-row), "equal": np.ones_like(row)}[order]
    found, ids, _ = top(row, k)
    assert found
    np.testing.assert_array_equal(ids, np.argsort(-row, kind="stable")[:k])


@pytest.mark.parametrize("sick", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 999])
@pytest.mark.parametrize("k", [1, 40, 1000])
def test_largest_finds_every_non_finite_value(sick, place, k):
    row = np.linspace(-3, 3, 1000, dtype=np.float32)
    row[place] = sick
    assert not top(row, k)[0]


def test_largest_rejects_more_than_there_are():
    with pytest.raises(ValueError, match="no longer than the row"):
        top(np.zeros(3, np.float32), 4)
    with pytest.raises(ValueError, match="equally long"):
        largest(np.zeros(3, np.float32), np.empty(2, np.int32), np.empty(1, np.float32))


@given(plain)
def test_weights_are_exponentials_and_their_sum_runs_in_order(values):
    row = np.array(values, np.float32)
    out = np.empty_like(row)
    total = weigh(row, float(row.max()), out)
    np.testing.assert_allclose(out, np.exp((row - row.max()).astype(np.float64)), rtol=2e-7, atol=1e-45)
    assert total == np.cumsum(out)[-1]


@given(plain, st.floats(0, 1, exclude_max=True))
def test_draw_takes_the_first_token_that_reaches_its_share(values, u):
    row = np.array(values, np.float32)
    weights = np.empty_like(row)
    weigh(row, float(row.max()), weights)
    sums = np.cumsum(weights, dtype=np.float64)
    assert draw(row, float(row.max()), u) == np.searchsorted(sums, u * sums[-1], side="left")


@given(plain)
def test_log_sum_exp_is_exact(values):
    row = np.array(values, np.float32)
    exact = float(row.max()) + math.log(math.fsum(math.exp(float(x) - float(row.max())) for x in row))
    assert log_sum_exp(row) == pytest.approx(exact, rel=1e-14, abs=1e-13)


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_mask_keeps_the_values_of_set_bits(bits):
    row = np.arange(len(bits), dtype=np.float32)
    packed = np.packbits(bits, bitorder="little")
    words = np.frombuffer(packed.tobytes().ljust(-(-len(bits) // 32) * 4, b"\0"), np.uint32)
    out = np.empty_like(row)
    mask(row, words, out)
    np.testing.assert_array_equal(out, np.where(bits, row, -np.inf))


def test_too_short_mask_is_rejected():
    with pytest.raises(ValueError, match="a bit of words for each"):
        mask(np.zeros(33, np.float32), np.zeros(1, np.uint32), np.empty(33, np.float32))


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 70))
def test_repeat_lengths_count_earlier_occurrences_of_the_end(tokens, limit):
    array, out = np.array(tokens, np.int32), np.empty(len(tokens), np.int32)
    repeat_lengths(array, limit, out)
    for end in range(len(tokens) - 1):
        n = 0
        while n <= end and tokens[end - n] == tokens[-1 - n]:
            n += 1
        assert out[end] == min(n, limit)
    assert not tokens or out[-1] == 0
