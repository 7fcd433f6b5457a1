"""Writing: what goes in comes out, byte for byte where the file allows it, or the file is not touched."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.vocabularies import find_vocabularies, need_vocabularies
from tests.gguf.build import entry, gguf_bytes, string, tensor, write_sample
from woolly.errors import GGUFError
from woolly.gguf import GGUFWriter, copy_gguf, open_gguf
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType


def read_back(path: Path, value: object, type: ValueType | None = None) -> tuple[object, ValueType, ValueType | None]:
    writer = GGUFWriter(path)
    writer.add("k", value, type)
    writer.write()
    metadata = open_gguf(path).metadata
    return metadata["k"], metadata.get_type("k"), metadata.get_element_type("k")


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (True, "BOOL"),
        (0, "UINT32"),
        (2**32 - 1, "UINT32"),
        (-1, "INT32"),
        (2**32, "UINT64"),
        (2**64 - 1, "UINT64"),
        (-(2**31) - 1, "INT64"),
        (1.5, "FLOAT32"),
        ("é", "STRING"),
        (np.int16(-3), "INT16"),
        (np.float64(0.1), "FLOAT64"),
        (np.bool_(True), "BOOL"),
    ],
)
def test_value_type_is_inferred(tmp_path, value, type):
    assert read_back(tmp_path / "x.gguf", value) == (value, ValueType[type], None)


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([1, 2, 2**32 - 1], "UINT32"),
        ([-1, 2], "INT32"),
        ([-1, 2**31], "INT64"),
        ([1, 2.5], "FLOAT32"),
        ((True, False), "BOOL"),
        (["a", ""], "STRING"),
        (np.arange(3, dtype=np.int8), "INT8"),
        (np.arange(3, dtype=">u2"), "UINT16"),
        (np.array([True]), "BOOL"),
        (np.array(["x", "y"]), "STRING"),
    ],
)
def test_element_type_is_inferred(tmp_path, values, type):
    found, outer, inner = read_back(tmp_path / "x.gguf", values)
    assert list(found) == list(values)
    assert (outer, inner) == (ValueType.ARRAY, ValueType[type])


def test_declared_type_is_kept(tmp_path):
    assert read_back(tmp_path / "x.gguf", 7, ValueType.UINT8) == (7, ValueType.UINT8, None)
    assert read_back(tmp_path / "x.gguf", 7, ValueType.FLOAT64) == (7.0, ValueType.FLOAT64, None)
    found, _, inner = read_back(tmp_path / "x.gguf", np.arange(3), ValueType.UINT16)
    assert (found.tolist(), inner) == ([0, 1, 2], ValueType.UINT16)
    found, _, inner = read_back(tmp_path / "x.gguf", np.ones((2, 2), np.float32))
    assert (np.array(found).tolist(), inner) == ([[1, 1], [1, 1]], ValueType.ARRAY)


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (256, ValueType.UINT8),
        (-1, ValueType.UINT64),
        (1.5, ValueType.INT32),
        (1e39, ValueType.FLOAT32),
        ("x", ValueType.BOOL),
        (1, ValueType.BOOL),
        (True, ValueType.UINT8),
        (3, ValueType.STRING),
        (3, ValueType.ARRAY),
        (2**64, None),
        (None, None),
        (b"bytes", None),
        ({"a": 1}, None),
        ([1, "a"], None),
        ([True, 2], None),
        ([], None),
        ("\ud800", None),
        ([1, 300], ValueType.UINT8),
    ],
)
def test_value_that_does_not_fit_is_rejected_with_its_key(tmp_path, value, type):
    writer = GGUFWriter(tmp_path / "x.gguf")
    with pytest.raises(GGUFError, match=r"key 'some\.key': expected"):
        writer.add("some.key", value, type)


@settings(max_examples=60, deadline=None)
@given(
    values=st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(width=32, allow_nan=False),
            st.text(),
            st.lists(st.text(), min_size=1),
            st.lists(st.integers(0, 2**64 - 1), min_size=1),
            st.lists(st.lists(st.integers(-5, 5), min_size=1), min_size=1),
        ),
        max_size=6,
    ),
    version=st.sampled_from([2, 3]),
    alignment=st.sampled_from([8, 32, 64]),
)
def test_any_metadata_round_trips(tmp_path_factory, values, version, alignment):
    path = tmp_path_factory.mktemp("any") / "x.gguf"
    writer = GGUFWriter(path, version=version, alignment=alignment)
    values.pop("general.alignment", None)
    for key, value in values.items():
        writer.add(key, value)
    writer.add_tensor("t", np.arange(3, dtype=np.float32))
    writer.write()
    file = open_gguf(path)
    assert (file.version, file.alignment) == (version, alignment)

    def plain(value: object) -> object:
        return [plain(item) for item in value] if not np.isscalar(value) else value

    assert {key: plain(value) for key, value in file.metadata.items() if key != "general.alignment"} == values
    assert file.tensors["t"].dequantize().tolist() == [0, 1, 2]


def test_tensors_are_stored_as_requested(tmp_path):
    writer = GGUFWriter(tmp_path / "x.gguf")
    x = np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256)
    writer.add_tensor("f32", x)
    writer.add_tensor("f16", x.astype(np.float16))
    writer.add_tensor("f64", x.astype(np.float64))
    writer.add_tensor("q8", x.T.copy().T, GGMLType.Q8_0)
    writer.add_tensor("scalar", np.array(2.5, dtype=np.float32))
    writer.write()
    tensors = open_gguf(writer.path).tensors
    assert [tensor.type.name for tensor in tensors.values()] == ["F32", "F16", "F32", "Q8_0", "F32"]
    np.testing.assert_array_equal(tensors["f64"].dequantize(), x)
    np.testing.assert_allclose(tensors["q8"].dequantize(), x, atol=0.005)
    assert tensors["scalar"].dequantize() == 2.5


def test_unsupported_tensor_is_rejected_by_name(tmp_path):
    writer = GGUFWriter(tmp_path / "x.gguf")
    floats = np.zeros((2, 48), np.float32)
    for add, reason in (
        (lambda: writer.add_tensor("t", floats, GGMLType.Q4_0), "multiple of 32"),
        (lambda: writer.add_tensor("t", floats.astype(int)), "array of floats"),
        (lambda: writer.add_tensor("t", np.full(3, np.nan, np.float32)), "finite"),
        (lambda: writer.add_tensor("t", np.zeros((1,) * 5, np.float32)), "at most 4"),
        (lambda: writer.add_tensor("t", np.zeros((0, 4), np.float32)), "positive"),
        (lambda: writer.add_raw_tensor("t", GGMLType.Q4_0, (1, 32), bytes(17)), "expected 18 bytes"),
        (lambda: writer.add_raw_tensor("t", GGMLType.Q4_0, (1, 33), bytes(18)), "multiple of 32"),
    ):
        with pytest.raises(GGUFError, match=f"tensor 't': .*{reason}"):
            add()


def test_names_are_validated(tmp_path):
    writer = GGUFWriter(tmp_path / "x.gguf")
    writer.add("k", 1)
    writer.add_tensor("t", np.zeros(1, np.float32))
    for add, reason in (
        (lambda: writer.add("k", 2), "'k' again"),
        (lambda: writer.add("", 2), "1 to 65535 bytes"),
        (lambda: writer.add("x" * 65536, 2), "1 to 65535 bytes"),
        (lambda: writer.add_tensor("t", np.zeros(1, np.float32)), "'t' again"),
        (lambda: writer.add_tensor("", np.zeros(1, np.float32)), "1 to 65535 bytes"),
        (lambda: GGUFWriter("x", version=1), "version 2 or 3"),
        (lambda: GGUFWriter("x", alignment=24), "power of two"),
        (lambda: writer.add("general.alignment", 7), "power of two"),
    ):
        with pytest.raises(GGUFError, match=reason):
            add()


def test_unreadable_file_is_not_written(tmp_path):
    def names(writer: GGUFWriter) -> None:
        for i in range(9):
            writer.add(f"{i}" + "é" * 30000, 1)

    def entries(writer: GGUFWriter) -> None:
        for i in range(4097):
            writer.add(f"k{i}", 1)

    def tensors(writer: GGUFWriter) -> None:
        for i in range(16385):
            writer.add_raw_tensor(f"t{i}", GGMLType.I8, (1,), b"\0")

    for fill, reason in (
        (names, "at most 524288 bytes of names of keys and tensors, found 540009"),
        (entries, "at most 4096 metadata entries, found 4097"),
        (tensors, "at most 16384 tensors, found 16385"),
    ):
        writer = GGUFWriter(tmp_path / "x.gguf")
        fill(writer)
        with pytest.raises(GGUFError, match=reason):
            writer.write()
        assert not list(tmp_path.iterdir())


def test_adding_the_alignment_sets_it(tmp_path):
    writer = GGUFWriter(tmp_path / "x.gguf")
    writer.add("general.alignment", 128)
    writer.add_tensor("a", np.zeros(1, np.float32))
    writer.add_tensor("b", np.zeros(1, np.float32))
    writer.write()
    file = open_gguf(writer.path)
    assert file.alignment == 128
    assert file.tensors["b"].offset - file.tensors["a"].offset == 128


def test_file_is_replaced_atomically(tmp_path):
    path = write_sample(tmp_path / "x.gguf")
    before = path.read_bytes()
    old = open_gguf(path)
    writer = GGUFWriter(path)
    writer.add("k", 1)
    writer._tensors["broken"] = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        writer.write()
    assert path.read_bytes() == before
    del writer._tensors["broken"]
    writer.write()
    assert list(open_gguf(path).metadata) == ["k"]
    assert old.metadata["general.architecture"] == "llama"
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_unwritable_path_is_named(tmp_path):
    with pytest.raises(GGUFError, match=r"nowhere.*cannot write the file \(No such file or directory\)"):
        GGUFWriter(tmp_path / "nowhere" / "x.gguf").write()
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(GGUFError, match=r"folder\.gguf: cannot write the file"):
        GGUFWriter(tmp_path / "folder.gguf").write()
    assert [path.name for path in tmp_path.iterdir()] == ["folder.gguf"]


def copy_of(path: Path) -> bytes:
    with open_gguf(path) as file:
        copy_gguf(file, path.parent / "copy.gguf")
    return (path.parent / "copy.gguf").read_bytes()


@pytest.mark.parametrize(("version", "alignment"), [(2, 32), (3, 32), (3, 8), (3, 1024)])
def test_copy_is_identical(tmp_path, version, alignment):
    path = write_sample(tmp_path / "x.gguf", version=version, alignment=alignment)
    assert copy_of(path) == path.read_bytes()


def test_copy_keeps_trailing_padding(tmp_path):
    path = tmp_path / "x.gguf"
    bare = gguf_bytes([entry("k", ValueType.STRING, string("v"))], [tensor("t", [3])], bytes(12))
    for data in (bare, bare + bytes(20), gguf_bytes(), gguf_bytes() + bytes(8)):
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        assert copy_of(path) == data


def test_file_of_the_gguf_package_is_copied_byte_for_byte(tmp_path):
    path = tmp_path / "peer.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", "peer")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    writer.add_bool("flag", True)
    writer.add_custom_alignment(64)
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("u", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert copy_of(path) == path.read_bytes()
    assert open_gguf(path).tensors["t"].dequantize().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_values_read_and_added_again_give_the_same_bytes(tmp_path):
    source = open_gguf(write_sample(tmp_path / "x.gguf"))
    writer = GGUFWriter(tmp_path / "y.gguf")
    for key, value in source.metadata.items():
        type = source.metadata.get_element_type(key) or source.metadata.get_type(key)
        writer.add(key, value, type if type is not ValueType.ARRAY else None)
    writer.write()
    again = open_gguf(writer.path).metadata
    for key in source.metadata:
        assert again.raw(key).tobytes() == source.metadata.raw(key).tobytes(), key


@pytest.mark.parametrize("path", find_vocabularies() or [None], ids=lambda path: path.stem if path else "missing")
def test_real_vocabulary_is_copied_byte_for_byte(tmp_path, path):
    need_vocabularies()
    with open_gguf(path) as file:
        copy_gguf(file, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == path.read_bytes()


def test_tokens_of_a_real_vocabulary_match_the_gguf_package():
    path = min(need_vocabularies(), key=lambda path: path.stat().st_size)  # the peer's reader takes its time
    tokens = open_gguf(path).metadata["tokenizer.ggml.tokens"]
    peer = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens")
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == [
        bytes(peer.parts[index]) for index in peer.data
    ]


def test_real_model_is_copied_byte_for_byte(tmp_path, smollm2):
    with open_gguf(smollm2) as file:
        copy_gguf(file, tmp_path / "copy.gguf")
    with smollm2.open("rb") as original, (tmp_path / "copy.gguf").open("rb") as copy:
        while block := original.read(1 << 20):
            assert copy.read(1 << 20) == block
        assert not copy.read(1)


def test_header_matches_the_specification(tmp_path):
    writer = GGUFWriter(tmp_path / "x.gguf")
    writer.add("k", 5)
    writer.add_tensor("t", np.float32([[1, 2, 3], [4, 5, 6]]))
    writer.write()
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + entry("k", 4, struct.pack("<I", 5)) + tensor("t", [3, 2])
    padded = header + bytes(-len(header) % 32)
    assert writer.path.read_bytes() == padded + struct.pack("<6f", 1, 2, 3, 4, 5, 6) + bytes(8)
