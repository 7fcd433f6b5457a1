"""Sines, powers and products of towers: right, and of bits that no machine changes."""

import hashlib
from fractions import Fraction

import numpy as np

from woolly.multimodal.encoder.exact_math import powers, product, sines
from woolly.multimodal.encoder.relative_positions import fourier_tensors


def test_sines_and_powers_match_numpy_up_to_the_last_bits():
    angles = np.linspace(-2000, 2000, 9973)
    for found, want in zip(sines(angles), (np.sin(angles), np.cos(angles)), strict=True):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-14)
    np.testing.assert_allclose(powers(10000, [Fraction(i, 7) for i in range(-7, 8)]), 10000 ** (np.arange(-7, 8) / 7))


def test_dot_product_has_one_summation_order():
    random = np.random.RandomState(3)
    a, b = random.standard_normal((37, 19)), random.standard_normal((19, 2, 5))
    want = [sum((a[i, k] * b[k] for k in range(19)), np.zeros((2, 5))) for i in range(37)]
    np.testing.assert_array_equal(product(a, b), want)


def test_distance_coefficients_have_one_digest_on_every_machine():
    random = np.random.RandomState(5)
    found = fourier_tensors("waves", random.uniform(-1, 1, (2, 23, 4)), 2)["waves.weight"].dequantize()
    assert hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()[:16] == "9f84b3265857c31f"
