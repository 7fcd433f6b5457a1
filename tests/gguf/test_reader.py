"""Reading sound files: values, lazy views, closing, and the time to open a large vocabulary."""

import gc
import sys
import weakref

import gguf
import numpy as np
import pytest

from tests.gguf.build import entry, gguf_bytes, string, tensor, write_sample
from woolly.errors import GGUFError
from woolly.gguf import GGUFFile, GGUFWriter, StringArray, open_gguf
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType


@pytest.fixture
def sample(tmp_path) -> GGUFFile:
    return open_gguf(write_sample(tmp_path / "sample.gguf"))


def test_scalars_are_python_values_of_their_declared_type(sample):
    expected = {
        "general.architecture": ("llama", str, ValueType.STRING),
        "scalar.uint8": (3, int, ValueType.UINT8),
        "scalar.int64": (3, int, ValueType.INT64),
        "scalar.float32": (3.0, float, ValueType.FLOAT32),
        "scalar.float64": (3.0, float, ValueType.FLOAT64),
        "scalar.bool": (True, bool, ValueType.BOOL),
    }
    for key, (value, kind, type) in expected.items():
        assert sample.metadata[key] == value
        assert isinstance(sample.metadata[key], kind)
        assert sample.metadata.get_type(key) is type
        assert sample.metadata.get_element_type(key) is None


def test_numeric_arrays_are_read_only_views_into_the_file(sample):
    for type in ValueType:
        if type.dtype is not None:
            values = sample.metadata[f"array.{type.name.lower()}"]
            assert values.dtype == type.dtype
            assert values.tolist() == ([True, False] if type is ValueType.BOOL else [1, 2, 3])
            assert not values.flags.writeable
            assert np.shares_memory(values, sample.metadata.raw(f"array.{type.name.lower()}"))
            assert sample.metadata.get_type(f"array.{type.name.lower()}") is ValueType.ARRAY
            assert sample.metadata.get_element_type(f"array.{type.name.lower()}") is type


def test_strings_are_sequences_and_keep_bytes_that_are_not_utf8(sample):
    tokens = sample.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, StringArray)
    assert len(tokens) == 6
    assert tokens[5] == "🦙"
    assert tokens[-2:] == ["▁the", "🦙"]
    assert tokens.tolist() == list(tokens) == ["<s>", "", "\udcff", "é", "▁the", "🦙"]
    assert tokens[2].encode("utf-8", "surrogateescape") == b"\xff"
    assert len(sample.metadata["array.empty"]) == 0
    with pytest.raises(IndexError):
        tokens[6]


def test_arrays_nest(sample):
    strings, floats, inner = sample.metadata["array.nested"]
    assert strings == ["a", "b"]
    assert floats.tolist() == [1.5]
    assert [values.tolist() for values in inner] == [[1], [2, 3]]


def test_missing_key_is_a_key_error(sample):
    with pytest.raises(KeyError):
        sample.metadata["nothing"]
    assert sample.metadata.get("nothing", 5) == 5
    assert "nothing" not in sample.metadata


def test_tensors_keep_file_order_and_reverse_their_dimensions(sample):
    assert list(sample.tensors)[:3] == ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"]
    tensor = sample.tensors["blk.0.attn_q.weight"]
    assert (tensor.type, tensor.shape, tensor.n_elements, tensor.n_bytes) == (GGMLType.Q6_K, (2, 2, 256), 1024, 840)
    assert tensor.data.shape == (2, 2, 210)
    assert tensor.data.tobytes() == tensor.path.read_bytes()[tensor.offset : tensor.offset + 840]
    assert sample.tensors["scalar"].shape == ()


def test_tensor_data_is_a_view(sample):
    tensor = sample.tensors["token_embd.weight"]
    assert np.shares_memory(tensor.data, tensor.data)
    assert np.shares_memory(tensor.data, tensor.file.bytes)
    assert not tensor.data.flags.writeable
    assert tensor.data.ctypes.data % sample.alignment == 0


def test_gguf_package_reads_the_same(tmp_path):
    path = write_sample(tmp_path / "sample.gguf")
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    assert [peer.name for peer in theirs.tensors] == list(ours.tensors)
    for peer in theirs.tensors:
        same = ours.tensors[peer.name]
        assert (int(peer.tensor_type), tuple(peer.shape[::-1].tolist())) == (int(same.type), same.shape)
        assert peer.data.tobytes() == same.data.tobytes()
    for key in ("general.architecture", "scalar.uint16", "scalar.float64"):
        assert theirs.get_field(key).contents() == ours.metadata[key]


def test_views_outlive_the_file(tmp_path):
    path = write_sample(tmp_path / "sample.gguf")
    with open_gguf(path) as file:
        tensor, tokens = file.tensors["token_embd.weight"], file.metadata["tokenizer.ggml.tokens"]
        data, numbers = tensor.data, file.metadata["array.uint32"]
        before = data.tobytes()
    file.close()
    path.unlink()
    gc.collect()
    assert data.tobytes() == before
    assert numbers.tolist() == [1, 2, 3]
    assert tokens[5] == "🦙"


def test_closed_file_says_so_and_keeps_its_scalars(tmp_path):
    file = open_gguf(write_sample(tmp_path / "sample.gguf"))
    assert len(file.metadata["array.uint32"]) == 3
    file.close()
    assert file.metadata["general.architecture"] == "llama"
    for read in (
        lambda: file.tensors["scalar"].data,
        lambda: file.metadata["array.uint32"],
        lambda: file.metadata.raw("general.architecture"),
    ):
        with pytest.raises(GGUFError, match="is closed"):
            read()


def test_close_releases_the_memory_map(tmp_path):
    file = open_gguf(write_sample(tmp_path / "sample.gguf"))
    file.metadata["array.uint32"], file.metadata["tokenizer.ggml.tokens"]
    map = weakref.ref(file.tensors["scalar"].file.bytes.base)
    assert map() is not None
    file.close()
    gc.collect()
    assert map() is None


def test_version_2_and_other_alignments_open(tmp_path):
    for version, alignment in ((2, 32), (3, 8), (3, 4096)):
        path = write_sample(tmp_path / f"{version}-{alignment}.gguf", version=version, alignment=alignment)
        file = open_gguf(path)
        assert (file.version, file.alignment) == (version, alignment)
        assert all(tensor.offset % alignment == 0 for tensor in file.tensors.values())


def test_odd_files_found_in_the_wild_open(tmp_path):
    path = tmp_path / "odd.gguf"
    long_key, long_name = "k" * 300, "n" * 90
    # Not padded at the end, tensors out of order, and a gap between them.
    path.write_bytes(
        gguf_bytes(
            [entry(long_key, ValueType.STRING, string("v"))],
            [tensor(long_name, [3], offset=128), tensor("b", [2], offset=0)],
            bytes(128) + np.float32([1, 2, 3]).tobytes(),
        )
    )
    file = open_gguf(path)
    assert file.metadata[long_key] == "v"
    assert file.tensors[long_name].dequantize().tolist() == [1, 2, 3]


def test_open_takes_any_path_and_counts_bytes(tmp_path):
    path = write_sample(tmp_path / "sample.gguf")
    for given in (path, str(path)):
        file = open_gguf(given)
        assert file.path == path
        assert file.paths == (path,)
        assert file.n_bytes == path.stat().st_size


def test_vocabulary_of_256k_tokens_is_read_lazily(tmp_path):
    n_tokens, n_merges = 256_000, 500_000
    writer = GGUFWriter(tmp_path / "large.gguf")
    writer.add("tokenizer.ggml.tokens", [f"▁token{i}" for i in range(n_tokens)])
    writer.add("tokenizer.ggml.scores", np.zeros(n_tokens, np.float32))
    writer.add("tokenizer.ggml.token_type", np.ones(n_tokens, np.int32))
    writer.add("tokenizer.ggml.merges", [f"left{i} right{i}" for i in range(n_merges)])
    writer.write()
    calls = []
    sys.setprofile(lambda *event: calls.append(event[1]))
    try:
        file = open_gguf(writer.path)
    finally:
        sys.setprofile(None)
    assert len(calls) < 5000  # not one for each token, which would take a second
    assert len(file.metadata["tokenizer.ggml.merges"]) == n_merges
    assert file.metadata["tokenizer.ggml.merges"][-1] == f"left{n_merges - 1} right{n_merges - 1}"
