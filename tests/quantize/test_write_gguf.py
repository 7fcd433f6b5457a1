"""Whole files: what is kept, what changes, and that nothing is left of one that failed."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, SamplingParams
from woolly.errors import GGUFError, RequestError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.quant import GGMLType
from woolly.quantize import find_mix, make_recipe, quantize_file

WIDE = replace(TINY["llama"], width=256, ffn=512, head_dim=64, type=GGMLType.F32)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny(WIDE, tmp_path_factory.mktemp("quantize") / "wide.gguf")


def convert(source, target, mix, **options):
    calls = []
    with open_gguf(source) as file:
        recipe = make_recipe(file, find_mix(mix))
        summary = quantize_file(file, recipe, target, threads=2, progress=lambda *call: calls.append(call), **options)
    return summary, calls


def test_metadata_is_kept_except_the_type(source, tmp_path):
    summary, _ = convert(source, tmp_path / "out.gguf", "Q4_K_M")
    with open_gguf(source) as before, open_gguf(tmp_path / "out.gguf") as after:
        own = {"general.file_type", "general.quantization_version"}
        assert set(after.metadata) == set(before.metadata) | own
        assert all(bytes(before.metadata.raw(k)) == bytes(after.metadata.raw(k)) for k in set(before.metadata) - own)
        assert (after.metadata["general.file_type"], after.metadata["general.quantization_version"]) == (15, 2)
        assert list(after.tensors) == list(before.tensors)
        assert summary.n_bytes == after.n_bytes == (tmp_path / "out.gguf").stat().st_size
        assert summary.types["F32"] == sum(t.type is GGMLType.F32 for t in after.tensors.values())


@pytest.mark.parametrize("mix", ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_NL", "BF16"])
def test_smaller_model_computes_nearly_the_same(source, tmp_path, mix):
    convert(source, tmp_path / "out.gguf", mix)
    ids = list(range(40, 60))
    with LLM(source, backend="reference") as whole, LLM(tmp_path / "out.gguf", threads=1) as small:
        expected, found = whole.logits(ids), small.logits(ids)
        small.generate("hello", SamplingParams(max_tokens=3))
    similar = np.sum(expected * found) / np.linalg.norm(expected) / np.linalg.norm(found)
    assert similar > {"BF16": 0.9995, "Q8_0": 0.999, "Q6_K": 0.993, "Q5_K_M": 0.98}.get(mix, 0.92)


def test_progress_counts_the_bytes_read(source, tmp_path):
    _, calls = convert(source, tmp_path / "out.gguf", "Q4_0")
    with open_gguf(source) as file:
        total = sum(tensor.n_bytes for tensor in file.tensors.values())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (total, total)


def test_file_converted_back_has_its_quantized_values(source, tmp_path):
    convert(source, tmp_path / "small.gguf", "Q8_0")
    with open_gguf(tmp_path / "small.gguf") as file:
        recipe = make_recipe(file, find_mix("F32"), allow_requantize=True)
        quantize_file(file, recipe, tmp_path / "back.gguf", threads=1)
        with open_gguf(tmp_path / "back.gguf") as back:
            for name, tensor in file.tensors.items():
                np.testing.assert_array_equal(back.tensors[name].dequantize(), tensor.dequantize())


def test_input_file_is_not_overwritten(source, tmp_path):
    link = tmp_path / "link.gguf"
    link.symlink_to(source)
    with pytest.raises(RequestError, match="is the source file"):
        convert(source, link, "Q4_0")


def test_non_finite_number_names_its_place_and_leaves_nothing(tmp_path):
    writer = GGUFWriter(tmp_path / "bad.gguf")
    writer.add("general.architecture", "llama")
    values = np.ones((8, 256), np.float32)
    values[5, 7] = np.inf
    writer.add_raw_tensor("blk.0.attn_q.weight", GGMLType.F32, values.shape, values.view(np.uint8))
    writer.write()
    with pytest.raises(GGUFError, match=r"tensor 'blk\.0\.attn_q\.weight': row 5 has a number that is infinite"):
        convert(tmp_path / "bad.gguf", tmp_path / "out.gguf", "Q4_K_S")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


def test_too_small_disk_is_reported_before_the_work(source, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(GGUFError, match=r"takes \d+ MB, but the disk has 0 MB free; free some space"):
        convert(source, tmp_path / "out.gguf", "Q4_0")
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_gives_a_one_line_error_and_leaves_nothing(source, tmp_path, monkeypatch):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, 10**9))
    real = Path.open

    def on_full_disk(self, mode="r", *rest, **options):
        if not self.name.endswith(".part"):
            return real(self, mode, *rest, **options)
        real(self, mode).close()
        return real(full, "r+b", buffering=0)

    monkeypatch.setattr(Path, "open", on_full_disk)
    with pytest.raises(
        GGUFError, match=r"cannot write the file \(No space left on device\); it takes \d+ MB; free some space"
    ):
        convert(source, tmp_path / "out.gguf", "Q4_0")
    assert list(tmp_path.iterdir()) == []


def test_mismatched_parts_are_rejected(tmp_path):
    writer = GGUFWriter(tmp_path / "out.gguf")
    writer.add_streamed_tensor("x", GGMLType.F32, (2, 4), lambda: [np.zeros(16, np.uint8)])
    with pytest.raises(GGUFError, match="expected parts of 32 bytes together, found 16"):
        writer.write()
    assert list(tmp_path.iterdir()) == []


def test_size_is_known_before_writing(source, tmp_path):
    for tensors in (True, False):
        writer = GGUFWriter(tmp_path / "out.gguf", alignment=64)
        writer.add("general.name", "héllo")
        if tensors:
            writer.add_raw_tensor("x", GGMLType.F32, (5,), bytes(20))
            writer.add_raw_tensor("y", GGMLType.F16, (3, 3), bytes(18))
        writer.write()
        assert writer.n_bytes() == (tmp_path / "out.gguf").stat().st_size
