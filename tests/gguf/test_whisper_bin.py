"""whisper.cpp's files are read as GGUF files are: their vocabulary, sizes and tensors, and none that is cut or lies."""

import struct

import numpy as np
import pytest

from tests.cases.whisper import tensors, words, write_whisper
from woolly.errors import GGUFError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.gguf.mapped_file import LazyMap
from woolly.quant import GGMLType


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("bin") / "ggml-tiny.en.bin", 51864, half=True)


def test_file_is_read_with_its_vocabulary_and_tensors(path):
    with open_gguf(path) as file:
        keys, own = file.metadata, tensors(51864)
        assert keys["general.architecture"] == "whisper"
        assert (keys["whisper.block_count"], keys["whisper.decoder_block_count"]) == (1, 2)
        texts = keys["tokenizer.ggml.tokens"].tolist()
        assert len(texts) == 51864
        assert texts[50256:50260] == ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>"]
        assert texts[50357:50364] == [
            *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"),
            *("<|notimestamps|>", "<|0.00|>"),
        ]
        assert texts[:3] == ["Ā", "ā", "Ă"]
        assert len(words(50256)) == 50256
        assert len(file.tensors) == len(own) + 1  # the filters
        up = file.tensors["dec.blk.1.ffn_up.weight"]
        assert up.type is GGMLType.F16
        np.testing.assert_array_equal(up.dequantize(), own["decoder.blocks.1.mlp.0.weight"].astype(np.float16))
        table = file.tensors["dec.position_embd.weight"].dequantize()
        assert not table[:1500].any()
        np.testing.assert_array_equal(table[1500:], own["decoder.positional_embedding"])


@pytest.mark.parametrize("n", [3, 40, 60, 300, 70_000, 700_000, 2_000_000])
def test_truncated_file_gives_a_one_line_error(path, tmp_path, n):
    (tmp_path / "cut.bin").write_bytes(path.read_bytes()[:n])
    with pytest.raises(GGUFError, match=r"cut\.bin: .*\(at byte \d+\)$"):
        open_gguf(tmp_path / "cut.bin")


def test_other_ggml_model_is_rejected(tmp_path):
    (tmp_path / "old.bin").write_bytes(b"lmgg" + struct.pack("<11i", 32000, *[16] * 10) + bytes(100))
    with pytest.raises(UnsupportedError, match="not a Whisper model"):
        open_gguf(tmp_path / "old.bin")


@pytest.mark.parametrize(
    ("places", "value", "sentence"),
    [
        ((1,), 1 << 17, "not a Whisper model"),
        ((1,), 1501, "n_audio_ctx is 1501; Whisper's encoder has 1500 rows"),
        ((2, 6), 1 << 14, "not a Whisper model"),
        ((5,), 100, r": expected \(100, 32\) numbers of tensor .*, found \(448, 32\) of F32"),
        ((2, 6), 64, r": expected \(448, 64\) numbers"),
    ],
)
def test_false_sizes_are_rejected_before_allocation(path, tmp_path, places, value, sentence):
    data = bytearray(path.read_bytes())
    for place in places:
        struct.pack_into("<i", data, 4 + 4 * place, value)
    (tmp_path / "lying.bin").write_bytes(data)
    with pytest.raises((GGUFError, UnsupportedError), match=sentence):
        open_gguf(tmp_path / "lying.bin")


def test_opening_copies_no_tensor_and_reading_gives_aligned_floats(tmp_path):
    own = tensors(51864)
    with open_gguf(write_whisper(tmp_path / "ggml-tiny.en.bin", 51864)) as file:
        late = [one for one in file.tensors.values() if isinstance(one.file, LazyMap)]
        assert len(late) > 5 and all(one.file._bytes is None for one in late)
        for name, its in (("attn_q.weight", "attn.query.weight"), ("ffn_up.bias", "mlp.0.bias")):
            tensor = file.tensors[f"dec.blk.1.{name}"]
            assert tensor.data.ctypes.data % 4 == 0
            np.testing.assert_array_equal(tensor.dequantize(), own[f"decoder.blocks.1.{its}"])


def test_f16_positions_are_read_as_floats(path, tmp_path):
    data, name = path.read_bytes(), b"decoder.positional_embedding"
    at, table = data.index(name), tensors(51864)["decoder.positional_embedding"]
    head = struct.pack("<5i", 2, len(name), int(GGMLType.F16), *table.shape[::-1])
    rest = data[at + len(name) + table.nbytes :]
    (tmp_path / "half.bin").write_bytes(data[: at - 20] + head + name + table.astype(np.float16).tobytes() + rest)
    with open_gguf(tmp_path / "half.bin") as file:
        tensor = file.tensors["dec.position_embd.weight"]
        assert tensor.type is GGMLType.F32 and tensor.shape == (1948, 32)
        np.testing.assert_array_equal(tensor.dequantize()[1500:], table.astype(np.float16))
