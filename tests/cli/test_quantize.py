"""`woolly quantize` as a person types it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly.errors import WoollyError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.quant import GGMLType

WIDE = replace(TINY["llama"], width=256, ffn=512, head_dim=64, n_layers=1)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny(WIDE, tmp_path_factory.mktemp("quantize") / "wide.gguf")


def test_quantize_writes_and_reports_a_file(source, tmp_path):
    out = tmp_path / "out.gguf"
    said = woolly("quantize", source, out, "q4_k_m")
    with open_gguf(out) as file:
        types = {tensor.type.name for tensor in file.tensors.values()}
    assert types == {"Q4_K", "Q6_K", "F32"}
    assert all(expected in said for expected in ("Q4_K", "bits each", str(out)))


def test_json_has_sizes_and_time(source, tmp_path):
    facts = json.loads(woolly("quantize", source, tmp_path / "out.gguf", "Q8_0", "--json", "-t", "1"))
    assert facts["file_bytes"] == (tmp_path / "out.gguf").stat().st_size
    assert facts["bytes"] < facts["bytes_before"] / 3
    assert facts["seconds"] > 0
    assert facts["tensors"]["Q8_0"]["count"] > 5


def test_dry_run_reports_the_same_sizes_and_writes_nothing(source, tmp_path):
    dry = json.loads(woolly("quantize", source, tmp_path / "out.gguf", "Q5_K_M", "--dry-run", "--json"))
    assert list(tmp_path.iterdir()) == []
    wet = json.loads(woolly("quantize", source, tmp_path / "out.gguf", "Q5_K_M", "--json"))
    assert (dry["bytes"], dry["tensors"]) == (wet["bytes"], wet["tensors"])
    assert dry["tensor_list"]["blk.0.attn_norm.weight"]["to"] == "F32"
    summary = woolly("quantize", source, tmp_path / "x.gguf", "Q5_K_M", "--dry-run")
    whole = woolly("quantize", source, tmp_path / "x.gguf", "Q5_K_M", "--dry-run", "--verbose")
    assert len(summary.splitlines()) == 2
    assert whole.endswith(summary)
    assert "blk.0.ffn_down.weight" in whole


def test_types_of_the_two_large_tensors_can_be_chosen(source, tmp_path):
    options = ("--output-tensor-type", "q8_0", "--token-embedding-type", "F16", "--dry-run", "--json")
    listed = json.loads(woolly("quantize", source, tmp_path / "x.gguf", "Q4_K_M", *options))["tensor_list"]
    assert (listed["output.weight"]["to"], listed["token_embd.weight"]["to"]) == ("Q8_0", "F16")


def test_invalid_arguments_give_a_one_line_error(source, tmp_path):
    there = tmp_path / "there.gguf"
    there.touch()
    small = tmp_path / "small.gguf"
    woolly("quantize", source, small, "Q8_0")
    for arguments, expected in {
        (source, there, "Q4_0"): "already exists; choose another name, or add --force",
        (source, tmp_path, "Q4_0"): "is a folder",
        (source, tmp_path / "x", "Q4KM"): "did you mean Q4_K_M",
        (source, tmp_path / "x", "Q4_0", "-t", "0"): "--threads is 0",
        (source, tmp_path / "x", "Q4_0", "--output-tensor-type", "Q9"): "--output-tensor-type is 'Q9'",
        (source, source, "Q4_0", "--force"): "is the source file",
        (small, tmp_path / "x", "Q4_0"): "--allow-requantize",
        (source, tmp_path / "no" / "x.gguf", "Q4_0"): "No such file",
    }.items():
        with pytest.raises(WoollyError, match=expected):
            woolly("quantize", *arguments)
    woolly("quantize", source, there, "Q4_0", "--force")
    woolly("quantize", small, tmp_path / "smaller.gguf", "Q4_0", "--allow-requantize")
    assert {path.suffix for path in tmp_path.iterdir()} == {".gguf"}


def test_metadata_of_the_file_can_be_changed(source, tmp_path):
    out, text = tmp_path / "out.gguf", tmp_path / "text.txt"
    words = ("--override-kv", "*.rope.freq_base=float:500,general.name=str:wool", "--override-kv", "my.key=int:-3")
    woolly("quantize", source, out, "Q8_0", *words)
    with open_gguf(out) as file:
        assert file.metadata["general.name"] == "wool"
        assert (file.metadata["llama.rope.freq_base"], file.metadata["my.key"]) == (500.0, -3)
        assert file.metadata.get_type("llama.rope.freq_base").name == "FLOAT32"
    with pytest.raises(WoollyError, match=r"'general\.file_type', which quantization writes; omit it"):
        woolly("quantize", source, out, "Q8_0", "--force", "--override-kv", "general.file_type=int:1")
    text.write_text("the quick brown fox jumps over the lazy dog. " * 8)
    importance = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    woolly("imatrix", source, text, "-o", importance[0], "--ctx", "32", "-n", "1")
    woolly("imatrix", source, text, "-o", importance[1], "--ctx", "32", "-n", "1", "--rope-freq-base", "3")
    plain, other = (path.read_bytes() for path in importance)
    assert len(plain) == len(other) and plain != other


def test_imatrix_is_made_and_used(source, tmp_path):
    text, matrix = tmp_path / "text.txt", tmp_path / "i.gguf"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 8)
    facts = json.loads(woolly("imatrix", source, text, "-o", matrix, "--ctx", "32", "-n", "2", "--json"))
    assert (facts["entries"], facts["chunks"], facts["path"]) == (7, 2, str(matrix))
    woolly("quantize", source, tmp_path / "out.gguf", "IQ2_S", "--imatrix", matrix)
    with open_gguf(tmp_path / "out.gguf") as file:
        assert file.metadata["quantize.imatrix.dataset"] == "text.txt"
        assert file.tensors["blk.0.ffn_up.weight"].type.name == "IQ2_XS"
    for arguments, expected in {
        ("imatrix", source, text, "-o", matrix): "already exists",
        ("imatrix", source, text, "-o", tmp_path / "x", "--ctx", "2"): "ctx is 2",
        ("imatrix", source, text, "-o", tmp_path / "x", "--chunks", "0"): "chunks is 0",
        ("quantize", source, tmp_path / "x", "IQ1_S"): "needs an imatrix",
        ("quantize", source, tmp_path / "x", "Q4_0", "--imatrix", text): "not an imatrix file",
    }.items():
        with pytest.raises(WoollyError, match=expected):
            woolly(*arguments)


def test_split_model_can_stay_split(source, tmp_path):
    with open_gguf(source) as whole:
        names = list(whole.tensors)
        for number, own in enumerate((names[:5], names[5:])):
            writer = GGUFWriter(tmp_path / f"in-0000{number + 1}-of-00002.gguf")
            for key in whole.metadata if number == 0 else ():
                writer.add_raw(key, whole.metadata.raw(key))
            writer.add("split.no", np.uint16(number))
            writer.add("split.count", np.uint16(2))
            writer.add("split.tensors.count", np.int32(len(names)))
            for name in own:
                tensor = whole.tensors[name]
                writer.add_raw_tensor(name, tensor.type, tensor.shape, tensor.data)
            writer.write()
    first = tmp_path / "in-00001-of-00002.gguf"
    facts = json.loads(woolly("quantize", first, tmp_path / "out.gguf", "Q4_K_M", "--keep-split", "--json"))
    woolly("quantize", first, tmp_path / "one.gguf", "Q4_K_M")
    assert facts["path"] == str(tmp_path / "out-00001-of-00002.gguf")
    with open_gguf(facts["path"]) as parts, open_gguf(tmp_path / "one.gguf") as one:
        assert [path.name for path in parts.paths] == ["out-00001-of-00002.gguf", "out-00002-of-00002.gguf"]
        assert {name for name, tensor in parts.tensors.items() if tensor.path == parts.paths[0]} == set(names[:5])
        assert all(bytes(parts.tensors[n].data) == bytes(one.tensors[n].data) for n in names)
    with pytest.raises(WoollyError, match=r"out-00001-of-00002\.gguf already exists"):
        woolly("quantize", first, tmp_path / "out.gguf", "Q4_K_M", "--keep-split")


def test_dry_run_names_lossless_types(source, tmp_path):
    kept = json.loads(woolly("quantize", source, tmp_path / "x", "F32", "--dry-run", "--json"))
    lossy = json.loads(woolly("quantize", source, tmp_path / "x", "Q8_0", "--dry-run", "--json"))
    assert (kept["loss_free"], lossy["loss_free"]) == (True, False)
    assert lossy["tensor_list"]["output_norm.weight"]["loss_free"]
    assert "nothing is lost" in woolly("quantize", source, tmp_path / "x", "F32", "--dry-run")


def test_types_are_chosen_for_a_size(tmp_path, monkeypatch):
    source = write_tiny(replace(WIDE, type=GGMLType.F16), tmp_path / "f16.gguf")
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 8)
    limit = source.stat().st_size * 6 // 16
    options = ("--size", str(limit), "--text", text, "--ctx", "32", "--windows", "1", "-t", "1")
    facts = json.loads(woolly("quantize", source, out, *options, "--plot", tmp_path / "x.svg", "--json"))
    assert facts["file_bytes"] == out.stat().st_size <= limit
    assert (tmp_path / "x.svg").read_text().startswith("<svg")
    with open_gguf(out) as file:
        assert {name: file.tensors[name].type.name for name in facts["tensor_types"]} == facts["tensor_types"]
    shown = woolly("quantize", source, out, *options, "--dry-run")  # all is measured already
    assert "> picked" in shown
    for more, expected in {
        ("Q4_0", "--size", "1MB"): "missing type or --size",
        (): "missing type or --size",
        ("--size", "1MB"): "needs --text FILE",
        ("--size", "1kB", "--text", text, "--ctx", "32"): "another model, text, setting or version",
        ("Q4_0", "--text", text): "--text needs --size",
        ("Q4_0", "--ctx", "256"): "--ctx needs --size",
        ("Q4_0", "--windows", "4"): "--windows needs --size",
        ("--size", "1MB", "--text", text, "--ctx", "0"): "--ctx is 0; expected at least 8",
        ("--size", "1MB", "--pure"): "--pure cannot be combined with --size",
        ("--size", "much", "--text", text): "expected bytes",
    }.items():
        with pytest.raises(WoollyError, match=expected):
            woolly("quantize", source, out, "--force", *more)
    monkeypatch.setattr("woolly.runtime.arithmetic_version.ARITHMETIC_VERSION", -1)  # a Woolly that computes otherwise
    with pytest.raises(WoollyError, match="or version of Woolly"):
        woolly("quantize", source, out, *options, "--dry-run")
