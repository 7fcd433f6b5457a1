"""Dequantization is bit for bit what the gguf package computes, for any bytes whatsoever."""

import warnings

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.gguf.build import write_sample
from woolly.errors import GGUFError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.quant import GGMLType, can_dequantize, dequantize
from woolly.quant.decode import _CHUNK

PEER_TYPES = [type for type in GGMLType if can_dequantize(type) and type.name not in ("F64", "I8", "I16", "I32", "I64")]


def by_peer(data: np.ndarray, type: GGMLType) -> np.ndarray:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return quants.dequantize(data.copy(), gguf.GGMLQuantizationType(int(type)))


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    # Which NaN comes out of an operation on two NaN is the processor's business.
    is_nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), is_nan)
    np.testing.assert_array_equal(ours.view(np.uint32)[~is_nan], theirs.view(np.uint32)[~is_nan])


@pytest.mark.parametrize("type", PEER_TYPES, ids=lambda type: type.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_bytes_decode_like_ggml(type: GGMLType, data: st.DataObject):
    n_rows, n_blocks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shape = (n_rows, n_blocks * type.type_size)
    raw = data.draw(npst.arrays(np.uint8, shape, elements=st.integers(0, 255)))
    assert_same_bits(dequantize(raw, type), by_peer(raw, type))


@pytest.mark.parametrize("type", PEER_TYPES, ids=lambda type: type.name)
def test_chunked_decoding_is_seamless(type: GGMLType):
    n_columns = 4 * type.block_size
    n_rows = 2 * _CHUNK // n_columns + 3
    raw = np.random.default_rng(1).integers(0, 256, (n_rows, type.row_bytes(n_columns)), dtype=np.uint8)
    assert_same_bits(dequantize(raw, type), by_peer(raw, type))


@pytest.mark.parametrize(
    ("type", "dtype"), [("F64", "<f8"), ("I8", "i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8")]
)
def test_plain_numbers_become_float32(type: str, dtype: str):
    values = np.array([[1, -2, 3], [100, 0, -128]], dtype=dtype)
    np.testing.assert_array_equal(dequantize(values.view(np.uint8), GGMLType[type]), values.astype(np.float32))


def test_non_contiguous_rows_and_leading_axes_are_supported():
    raw = np.random.default_rng(2).integers(0, 256, (4, 6, 2 * 34), dtype=np.uint8)
    picked = raw[::2, ::3]
    assert_same_bits(dequantize(picked, GGMLType.Q8_0), by_peer(raw, GGMLType.Q8_0)[::2, ::3])


def test_tensor_gives_all_rows_or_the_requested_ones(tmp_path):
    file = open_gguf(write_sample(tmp_path / "sample.gguf"))
    matrix = file.tensors["token_embd.weight"]
    every = matrix.dequantize()
    assert every.shape == matrix.shape == (3, 32)
    assert every.flags.writeable
    np.testing.assert_array_equal(matrix.dequantize(slice(1, 3)), every[1:3])
    np.testing.assert_array_equal(matrix.dequantize(np.array([2, 0, 2])), every[[2, 0, 2]])
    assert file.tensors["blk.0.attn_q.weight"].dequantize(slice(1, 2)).shape == (1, 2, 256)
    vector = file.tensors["output_norm.weight"]
    np.testing.assert_array_equal(vector.dequantize(slice(2, 4)), vector.dequantize()[2:4])
    assert file.tensors["scalar"].dequantize() == np.float32(5)


def test_unsupported_type_opens_and_is_named_when_decoded(tmp_path):
    tensor = open_gguf(write_sample(tmp_path / "sample.gguf")).tensors["blk.0.ffn_up.weight"]
    assert tensor.data.shape == (1, 36)
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.ffn_up\.weight' is Q1_0.*supported: F32, F16"):
        tensor.dequantize()
    with pytest.raises(UnsupportedError, match="Q1_0"):
        dequantize(tensor.data, GGMLType.Q1_0)


def test_data_of_the_wrong_width_is_rejected():
    with pytest.raises(GGUFError, match="multiple of 18 bytes"):
        dequantize(np.zeros((2, 17), np.uint8), GGMLType.Q4_0)
