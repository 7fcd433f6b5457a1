"""Frequencies of rotary embedding follow from its parameters."""

import math

import numpy as np
import pytest

from woolly.plan import Rope, rope_frequencies


def rope(**changes):
    return Rope(**{"head_dim": 8, "n_rot": 8, "base": 10000.0, "style": "neox", **changes})


def test_plain_frequencies_fall_geometrically():
    frequencies, magnitude = rope_frequencies(rope())
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.01, 0.001])
    assert magnitude == 1.0


def test_linear_scaling_divides_all_frequencies():
    frequencies, _ = rope_frequencies(rope(factor=4.0))
    np.testing.assert_allclose(frequencies, np.array([1, 0.1, 0.01, 0.001]) / 4)


def test_rope_factors_divide_each_its_own_pair():
    frequencies, _ = rope_frequencies(rope(), np.array([1, 1, 2, 8], np.float32))
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.005, 0.000125])


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
    yarn = rope(n_rot=64, head_dim=64, yarn=True, factor=4.0, original_context=2048)
    frequencies, magnitude = rope_frequencies(yarn)
    plain, _ = rope_frequencies(rope(n_rot=64, head_dim=64))
    assert frequencies[0] == plain[0]
    assert frequencies[-1] == pytest.approx(plain[-1] / 4)
    ratio = frequencies / plain
    assert (np.diff(ratio) <= 0).all()
    assert magnitude == pytest.approx(1 + 0.1 * math.log(4))
