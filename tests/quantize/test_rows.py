"""Rows to a type: the bytes of the NumPy oracle where the rounding is fixed, no worse where it is searched."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from woolly._native import can_quantize, quantize_rows
from woolly.quant import GGMLType, dequantize, quantize

FIXED = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
# Root mean square error of each searched type on normal numbers, over their own; the least that would betray a slip.
SEARCHED = {
    "Q2_K": 0.29,
    "Q3_K": 0.155,
    "Q4_K": 0.0725,
    "Q5_K": 0.037,
    "Q6_K": 0.018,
    "IQ4_NL": 0.077,
    "IQ4_XS": 0.0775,
    "IQ3_S": 0.151,
    "IQ3_XXS": 0.206,
    "IQ2_S": 0.266,
    "IQ2_XS": 0.317,
    "IQ2_XXS": 0.378,
    "IQ1_M": 0.479,
    "IQ1_S": 0.524,
    "MXFP4": 0.113,
}
# Types without a search, or with a range that is narrow: one scale of E4M3 for NVFP4.
OTHERS = ["NVFP4", "TQ1_0", "TQ2_0"]


def rows_of(x, name, threads=1, source=GGMLType.F32):
    type = GGMLType[name]
    data = quantize(x, source) if source is not GGMLType.F32 else x.view(np.uint8)
    out = np.full((len(x), type.row_bytes(x.shape[1])), 255, np.uint8)
    fault = quantize_rows(source, data.reshape(-1), x.shape[1], type, out.reshape(-1), threads)
    assert fault == (0, len(x))
    return out


def normal(rows=16, columns=1024, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def relative_error(x, name):
    return np.sqrt(np.mean((dequantize(rows_of(x, name), GGMLType[name]) - x) ** 2) / np.mean(x**2))


@pytest.mark.parametrize("name", FIXED)
@settings(max_examples=40, deadline=None)
@given(
    x=hnp.arrays(
        np.float32,
        (2, 64),
        elements=st.floats(-6e4, 6e4, width=32) | st.floats(-(2.0**-20), 2.0**-20, width=32),
    )
)
def test_fixed_roundings_have_the_bytes_of_the_oracle(name, x):
    x += np.float32(0)  # which of 0.0 and -0.0 is the smaller, NumPy leaves open
    np.testing.assert_array_equal(rows_of(x, name), quantize(x, GGMLType[name]))


@pytest.mark.parametrize(("name", "most"), SEARCHED.items())
def test_searched_types_lose_no_more_than_they_must(name, most):
    assert relative_error(normal(), name) < most
    # The scale of the numbers does not matter, down to where float16 has no more scales.
    assert relative_error(normal() * np.float32(1e-3), name) < most * 1.05


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_searches_are_no_worse_than_the_oracle(name):
    x = np.random.default_rng(1).standard_t(4, (16, 1024)).astype(np.float32)
    type = GGMLType[name]
    weight = np.abs(x)
    ours = np.sum(weight * (dequantize(rows_of(x, name), type) - x) ** 2)
    oracle = np.sum(weight * (dequantize(quantize(x, type), type) - x) ** 2)
    assert ours < 1.005 * oracle


def test_nvfp4_scales_lose_no_more_than_they_must():
    assert relative_error(normal(), "NVFP4") < 0.083


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_ternary_rows_round_trip_exactly(name):
    x = np.random.default_rng(3).integers(-1, 2, (4, 512)).astype(np.float32) * np.float32(0.75)
    np.testing.assert_array_equal(dequantize(rows_of(x, name), GGMLType[name]), x)


@pytest.mark.parametrize("name", [*FIXED, *SEARCHED, *OTHERS])
def test_bytes_do_not_depend_on_the_threads(name):
    x = normal(rows=70)
    np.testing.assert_array_equal(rows_of(x, name, threads=1), rows_of(x, name, threads=3))


@pytest.mark.parametrize("source", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_rows_of_other_types_are_read_like_the_oracle(source):
    x = normal(rows=4)
    known = dequantize(quantize(x, source), source)
    np.testing.assert_array_equal(rows_of(x, "Q4_K", source=source), rows_of(known, "Q4_K"))


@pytest.mark.parametrize("name", [*FIXED, *SEARCHED, *OTHERS])
@pytest.mark.parametrize("value", [0.0, 1e-30, -1e-38, 1.0, -5.5])
def test_constant_rows_round_trip(name, value):
    x = np.full((1, 256), value, np.float32)
    back = dequantize(rows_of(x, name), GGMLType[name])
    assert np.isfinite(back).all()
    # A step of E2M1 or E4M3 is up to an eighth of a number.
    np.testing.assert_allclose(back, x, rtol=0.13 if name in ("MXFP4", "NVFP4") else 0.02, atol=1e-7)


def test_every_float16_survives():
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[(every & 0x7C00) != 0x7C00]
    out = np.empty(2 * len(every), np.uint8)
    assert quantize_rows(GGMLType.F16, every.view(np.uint8), len(every), GGMLType.F16, out, 1)[0] == 0
    np.testing.assert_array_equal(out.view(np.uint16), every)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_first_non_finite_row_is_named(bad):
    x = normal(rows=200, columns=256)
    x[150, 3] = x[170, 0] = bad
    out = np.empty(200 * 144, np.uint8)
    for threads in (1, 2):
        assert quantize_rows(GGMLType.F32, x.view(np.uint8).reshape(-1), 256, GGMLType.Q4_K, out, threads) == (1, 150)


@pytest.mark.parametrize(
    "name", [name for name in (*FIXED, *SEARCHED, *OTHERS) if name not in ("F32", "BF16", "MXFP4")]
)
def test_numbers_beyond_a_type_are_named(name):
    x = np.zeros((2, 256), np.float32)
    x[1, ::2], x[1, 1::2] = 3e38, -3e38
    out = np.empty(2 * GGMLType[name].row_bytes(256), np.uint8)
    assert quantize_rows(GGMLType.F32, x.view(np.uint8).reshape(-1), 256, GGMLType[name], out, 1) == (2, 1)


def test_wrong_shapes_are_rejected():
    x, out = np.zeros(4 * 256, np.uint8), np.zeros(144, np.uint8)
    assert quantize_rows(0, x, 256, GGMLType.Q4_K, out, 1) == (0, 1)
    for arguments in (
        (0, x, 100, GGMLType.Q4_K, out, 1),
        (0, x, 0, GGMLType.Q4_K, out, 1),
        (0, x[:-4], 256, GGMLType.Q4_K, out, 1),
        (0, x, 256, GGMLType.Q4_K, out[:-1], 1),
        (0, x, 256, GGMLType.Q4_K, out, 0),
        (0, x, 256, GGMLType.Q8_K, out, 1),
        (0, x, 256, GGMLType.Q4_K, out, 1, np.ones(255, np.float32)),
        (5, x, 256, GGMLType.Q4_K, out, 1),
    ):
        with pytest.raises(ValueError, match=r"must|no rows"):
            quantize_rows(*arguments)
    assert not can_quantize(GGMLType.Q8_1)
