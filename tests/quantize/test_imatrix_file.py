"""Importance of columns: both formats of files, and that errors go where they count least."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly._native import quantize_rows
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.quant import GGMLType, dequantize
from woolly.quantize import find_mix, make_recipe, quantize_file, read_imatrix, write_imatrix
from woolly.quantize.imatrix_file import ColumnSums, ImportanceMatrix

WIDE = replace(TINY["llama"], width=256, ffn=512, head_dim=64, n_layers=1)
K_TYPES = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
CODEBOOKS = ["IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny(WIDE, tmp_path_factory.mktemp("imatrix") / "wide.gguf")


def matrix_of(source, path, leave_out=()):
    random = np.random.default_rng(0)
    with open_gguf(source) as file:
        entries = {
            name: ColumnSums(
                np.exp(random.normal(0, 2, (1, t.shape[-1]))).astype(np.float32), np.array([7], np.float32)
            )
            for name, t in file.tensors.items()
            if name.startswith("blk.") and len(t.shape) == 2 and name not in leave_out
        }
    return ImportanceMatrix(path, entries, ("text.txt",), 3, 64)


def encoded(x, name, importance):
    type = GGMLType[name]
    out = np.empty((len(x), type.row_bytes(x.shape[1])), np.uint8)
    assert quantize_rows(0, x.view(np.uint8).reshape(-1), x.shape[1], type, out.reshape(-1), 1, importance)[0] == 0
    return dequantize(out, type)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", *K_TYPES, *CODEBOOKS])
def test_errors_go_to_less_important_columns(name):
    random = np.random.default_rng(1)
    x = random.standard_t(5, (8, 512)).astype(np.float32)
    importance = np.exp(random.normal(0, 1.5, 512)).astype(np.float32)
    known, unknown = (np.sum(importance * (encoded(x, name, columns) - x) ** 2) for columns in (importance, None))
    assert known < 0.9 * unknown


def test_written_file_is_read_again(source, tmp_path):
    matrix = matrix_of(source, tmp_path / "imatrix.gguf")
    write_imatrix(matrix)
    again = read_imatrix(matrix.path)
    assert (again.datasets, again.n_chunks, again.chunk_size) == (("text.txt",), 3, 64)
    assert again.entries.keys() == matrix.entries.keys()
    for name, entry in matrix.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(again.entries[name].counts, entry.counts)
    with open_gguf(matrix.path) as file:
        assert file.metadata["general.type"] == "imatrix"
        assert file.tensors["blk.0.attn_q.weight.counts"].shape == (1, 1)


def test_files_of_the_older_format_mean_the_same(tmp_path):
    sums, path = np.array([2.0, 4, 6, 0], np.float32), tmp_path / "old.dat"
    name, text = b"blk.0.ffn_up_exps.weight", b"wiki.txt"
    path.write_bytes(
        struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 2, 4) + sums.tobytes()
        + struct.pack("<ii", 9, len(text)) + text
    )  # fmt: skip
    found = read_imatrix(path)
    assert (found.n_chunks, found.datasets) == (9, ("wiki.txt",))
    entry = found.entries[name.decode()]
    np.testing.assert_allclose(entry.columns(), sums[None] / sums.mean(), atol=1e-5)


@pytest.mark.parametrize("data", [b"", b"abc", struct.pack("<i", 1 << 24), struct.pack("<iii", 1, 900, 3)])
def test_invalid_imatrix_is_rejected(tmp_path, data):
    path = tmp_path / "x.dat"
    path.write_bytes(data)
    with pytest.raises(RequestError, match="imatrix file"):
        read_imatrix(path)


def test_unreached_columns_keep_a_little_weight_and_unseen_experts_count_alike():
    entry = ColumnSums(np.array([[0, 8], [0, 0]], np.float32), np.array([4, 0], np.float32))
    np.testing.assert_allclose(entry.columns(), [[1e-6, 2], [1, 1]])


def test_quantized_file_uses_the_imatrix_and_names_it(source, tmp_path):
    matrix = matrix_of(source, tmp_path / "imatrix.gguf")
    with open_gguf(source) as file:
        recipe = make_recipe(file, find_mix("IQ2_XXS"), has_imatrix=True)
        assert matrix.missing(recipe) == ["token_embd.weight", "output.weight"]
        quantize_file(file, recipe, tmp_path / "out.gguf", threads=2, imatrix=matrix)
        x = file.tensors["blk.0.ffn_up.weight"].dequantize()
    with open_gguf(tmp_path / "out.gguf") as out:
        importance = matrix.entries["blk.0.ffn_up.weight"].columns()[0]
        np.testing.assert_array_equal(
            out.tensors["blk.0.ffn_up.weight"].dequantize(), encoded(x, "IQ2_XXS", importance)
        )
        assert out.metadata["quantize.imatrix.file"] == "imatrix.gguf"
        assert out.metadata["quantize.imatrix.entries_count"] == len(matrix.entries)


def test_mismatched_imatrix_is_named(source, tmp_path):
    name = "blk.0.ffn_up.weight"
    with open_gguf(source) as file:
        with pytest.raises(RequestError, match=r"would be IQ2_XXS, which needs an imatrix"):
            make_recipe(file, find_mix("IQ2_XXS"))
        recipe = make_recipe(file, find_mix("IQ2_XXS"), has_imatrix=True)
        lacking = matrix_of(source, tmp_path / "i.gguf", leave_out={name})
        with pytest.raises(RequestError, match=rf"no entry of {name}, which IQ2_XXS needs"):
            lacking.missing(recipe)
        wrong = {**lacking.entries, name: ColumnSums(np.ones((1, 9), np.float32), np.ones(1, np.float32))}
        with pytest.raises(RequestError, match=rf"entry of {name} has 1 x 9 columns"):
            replace(lacking, entries=wrong).missing(recipe)
        assert name in lacking.missing(make_recipe(file, find_mix("Q4_K_M"), has_imatrix=True))
