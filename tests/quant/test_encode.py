"""Quantization: exact where the gguf package is a peer, close and stable where the format leaves a choice."""

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from woolly.errors import GGUFError, UnsupportedError
from woolly.quant import GGMLType, dequantize, quantize
from woolly.quant.encode import _CHUNK

EXACT = [GGMLType[name] for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
SEARCHED = [GGMLType.Q4_K, GGMLType.Q6_K]
ALL = EXACT + SEARCHED


def weights(n_rows: int, n_columns: int, seed: int = 0) -> np.ndarray:
    """Rows like those of a model: normal, each with its own scale, and a few outliers."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n_rows, n_columns)) * np.exp(random.standard_normal((n_rows, 1)))
    x[random.random(x.shape) < 0.002] *= 8
    return x.astype(np.float32)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def error_of(x: np.ndarray, type: GGMLType) -> float:
    return rms(dequantize(quantize(x, type), type) - x) / rms(x)


def min_max_q4_k(x: np.ndarray) -> np.ndarray:
    """Q4_K without a search: each group of 32 spans its own minimum and maximum, in 6-bit scales."""
    groups = x.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=2), 0)
    scale = (groups.max(axis=2) - low) / 15
    step = np.rint(scale / (scale.max(axis=1, keepdims=True) / 63)) * (scale.max(axis=1, keepdims=True) / 63)
    unit = (-low).max(axis=1, keepdims=True) / 63
    offset = np.rint(-low / unit) * unit
    levels = np.rint((groups + offset[..., None]) / step[..., None]).clip(0, 15)
    return (levels * step[..., None] - offset[..., None]).reshape(x.shape)


def min_max_q6_k(x: np.ndarray) -> np.ndarray:
    """Q6_K without a search: the largest magnitude of each group of 16 becomes -32, in 8-bit scales."""
    groups = x.reshape(-1, 16, 16)
    index = np.abs(groups).argmax(axis=2)[..., None]
    scale = np.take_along_axis(groups, index, axis=2)[..., 0] / -32
    unit = np.abs(scale).max(axis=1, keepdims=True) / 127
    step = np.rint(scale / unit) * unit
    return (np.rint(groups / step[..., None]).clip(-32, 31) * step[..., None]).reshape(x.shape)


@pytest.mark.parametrize("type", EXACT, ids=lambda type: type.name)
@settings(max_examples=40, deadline=None)
@given(
    x=npst.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.sampled_from([32, 64])),
        # Magnitudes that every type can hold, and none so small that 1/scale is infinite in the peer.
        elements=st.one_of(
            st.just(0.0),
            st.floats(2**-14, 60000, width=32),
            st.floats(-60000, -(2**-14), width=32),
        ),
    )
)
def test_encoded_bytes_match_ggml(type: GGMLType, x: np.ndarray):
    theirs = quants.quantize(x, gguf.GGMLQuantizationType(int(type))).view(np.uint8)
    np.testing.assert_array_equal(quantize(x, type), theirs)


@pytest.mark.parametrize("type", EXACT, ids=lambda type: type.name)
def test_chunked_encoding_is_seamless(type: GGMLType):
    x = weights(2 * _CHUNK // 1024 + 3, 1024)
    theirs = quants.quantize(x, gguf.GGMLQuantizationType(int(type))).view(np.uint8)
    np.testing.assert_array_equal(quantize(x, type), theirs)


def test_search_beats_plain_min_max():
    x = weights(64, 1024)
    assert error_of(x, GGMLType.Q4_K) < 0.97 * rms(min_max_q4_k(x) - x) / rms(x)
    assert error_of(x, GGMLType.Q6_K) < 0.98 * rms(min_max_q6_k(x) - x) / rms(x)


def test_more_bits_are_closer():
    x = weights(64, 1024)
    errors = [error_of(x, GGMLType[name]) for name in ("Q4_0", "Q4_K", "Q5_1", "Q6_K", "Q8_0", "BF16", "F16")]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 0.08
    assert errors[3] < 0.022


@pytest.mark.parametrize("type", ALL, ids=lambda type: type.name)
def test_requantizing_changes_nothing(type: GGMLType):
    x = weights(32, 1024)
    once = dequantize(quantize(x, type), type)
    moved = dequantize(quantize(once, type), type) - once
    if type in EXACT:
        assert not moved.any()
    else:
        # A search may settle on another scale for a group with outliers, but not for many.
        assert np.count_nonzero(moved) < 0.02 * x.size
        assert rms(moved) < 0.25 * rms(once - x)


@pytest.mark.parametrize("type", ALL, ids=lambda type: type.name)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 2.0**-5])
def test_constant_row_round_trips(type: GGMLType, value: float):
    x = np.full((2, 256), value, dtype=np.float32)
    np.testing.assert_allclose(dequantize(quantize(x, type), type), x, rtol=4e-3)


@pytest.mark.parametrize("type", ALL, ids=lambda type: type.name)
def test_values_too_small_for_a_scale_become_nearly_zero(type: GGMLType):
    x = np.full((1, 256), 1e-42, dtype=np.float32)
    x[0, ::3] *= -1
    assert np.abs(dequantize(quantize(x, type), type)).max() <= 1e-41


@pytest.mark.parametrize("type", SEARCHED, ids=lambda type: type.name)
@settings(max_examples=40, deadline=None)
@given(x=npst.arrays(np.float32, (1, 256), elements=st.floats(-1000, 1000, width=32)))
@example(x=np.full((1, 256), 1e-5, np.float32))
@example(x=np.full((1, 256), -8e-5, np.float32))
@example(x=np.full((1, 256), 3e-7, np.float32))
def test_search_error_is_at_most_two_steps(type: GGMLType, x: np.ndarray):
    error = np.abs(dequantize(quantize(x, type), type) - x).max()
    # The coarsest step is the block's range over the levels. A search may give up one step of an outlier for the
    # sake of the rest, and the rounding of scales takes its share.
    span = float(x.max() - x.min()) if type is GGMLType.Q4_K else 2 * float(np.abs(x).max())
    n_steps = 15 if type is GGMLType.Q4_K else 63
    span = max(span, float(np.abs(x).max()))
    # Tiny blocks: a group's scale is a whole multiple of d, and its minimum one of dmin. d and dmin are float16 and so
    # multiples of 2**-24 themselves: the scale is off by half of that, and a level of 15 (or -32) by so many times it.
    smallest = (15 + 1) / 2 * 2**-24 if type is GGMLType.Q4_K else 32 / 2 * 2**-24
    assert error <= 2 * span / n_steps + smallest


@pytest.mark.parametrize("type", SEARCHED, ids=lambda type: type.name)
@pytest.mark.parametrize("value", [8e-5, 3e-5, 1e-5, 1e-6])
def test_small_constant_does_not_vanish(type: GGMLType, value: float):
    x = np.full((1, 256), value, dtype=np.float32)
    np.testing.assert_allclose(dequantize(quantize(x, type), type), x, rtol=0.15)
    np.testing.assert_allclose(dequantize(quantize(-x, type), type), -x, rtol=0.15)


@pytest.mark.parametrize("type", ALL, ids=lambda type: type.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_value_is_named(type: GGMLType, bad: float):
    x = np.ones((4, 512), dtype=np.float32)
    x[2, 300] = bad
    with pytest.raises(GGUFError, match=f"found {bad} in row 2, column 300"):
        quantize(x, type)


@pytest.mark.parametrize("type", [type for type in ALL if type.name != "F32"], ids=lambda type: type.name)
def test_value_beyond_the_type_is_rejected(type: GGMLType):
    x = np.ones((1, 256), dtype=np.float32)
    x[0, 7] = -3.4e38
    with pytest.raises(GGUFError, match=r"as large as 3\.4e\+38"):
        quantize(x, type)


def test_unwritable_type_error_lists_the_writable_ones():
    with pytest.raises(UnsupportedError, match="Q2_K cannot be written yet; supported: F32"):
        quantize(np.zeros((1, 256), np.float32), GGMLType.Q2_K)
    with pytest.raises(GGUFError, match="multiple of 32"):
        quantize(np.zeros((1, 40), np.float32), GGMLType.Q4_0)
    with pytest.raises(GGUFError, match="scalar"):
        quantize(np.float32(1).reshape(()), GGMLType.F32)
