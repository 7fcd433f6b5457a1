"""whisper.cpp's files are read as GGUF files are: their vocabulary, sizes and tensors, and none that is cut or lies."""

import struct

import numpy as np
import pytest

from tests.cases.whisper import tensors, words, write_whisper
from woolly.errors import GGUFError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.quant import GGMLType


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("bin") / "ggml-tiny.en.bin", 51864, half=True)


def test_a_file_is_read_with_its_vocabulary_and_its_tensors(path):
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
def test_a_file_that_is_cut_is_one_sentence(path, tmp_path, n):
    (tmp_path / "cut.bin").write_bytes(path.read_bytes()[:n])
    with pytest.raises(GGUFError, match=r"cut\.bin: at byte"):
        open_gguf(tmp_path / "cut.bin")


def test_another_model_of_that_form_is_refused(tmp_path):
    (tmp_path / "old.bin").write_bytes(b"lmgg" + struct.pack("<11i", 32000, *[16] * 10) + bytes(100))
    with pytest.raises(UnsupportedError, match="no Whisper model"):
        open_gguf(tmp_path / "old.bin")
