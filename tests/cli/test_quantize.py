"""`woolly quantize` as a person types it."""

import json
from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly.errors import WoollyError
from woolly.gguf import open_gguf

WIDE = replace(TINY["llama"], width=256, ffn=512, head_dim=64, n_layers=1)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny(WIDE, tmp_path_factory.mktemp("quantize") / "wide.gguf")


def test_a_file_is_written_and_told_of(source, tmp_path):
    out = tmp_path / "out.gguf"
    said = woolly("quantize", source, out, "q4_k_m")
    with open_gguf(out) as file:
        types = {tensor.type.name for tensor in file.tensors.values()}
    assert types == {"Q4_K", "Q6_K", "F32"}
    assert all(expected in said for expected in ("Q4_K", "bits each", str(out)))


def test_json_tells_sizes_and_time(source, tmp_path):
    facts = json.loads(woolly("quantize", source, tmp_path / "out.gguf", "Q8_0", "--json", "-t", "1"))
    assert facts["file_bytes"] == (tmp_path / "out.gguf").stat().st_size
    assert facts["bytes"] < facts["bytes_before"] / 3
    assert facts["seconds"] > 0
    assert facts["tensors"]["Q8_0"]["count"] > 5


def test_a_dry_run_tells_the_same_sizes_and_writes_nothing(source, tmp_path):
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


def test_what_cannot_be_is_one_sentence(source, tmp_path):
    there = tmp_path / "there.gguf"
    there.touch()
    small = tmp_path / "small.gguf"
    woolly("quantize", source, small, "Q8_0")
    for arguments, expected in {
        (source, there, "Q4_0"): "exists already: give another name, or --force",
        (source, tmp_path, "Q4_0"): "is a folder",
        (source, tmp_path / "x", "Q4KM"): "did you mean Q4_K_M",
        (source, tmp_path / "x", "Q4_0", "-t", "0"): "--threads is 0",
        (source, tmp_path / "x", "Q4_0", "--output-tensor-type", "Q9"): "--output-tensor-type is 'Q9'",
        (source, source, "Q4_0", "--force"): "is the file that is read",
        (small, tmp_path / "x", "Q4_0"): "--allow-requantize",
        (source, tmp_path / "no" / "x.gguf", "Q4_0"): "No such file",
    }.items():
        with pytest.raises(WoollyError, match=expected):
            woolly("quantize", *arguments)
    woolly("quantize", source, there, "Q4_0", "--force")
    woolly("quantize", small, tmp_path / "smaller.gguf", "Q4_0", "--allow-requantize")
    assert {path.suffix for path in tmp_path.iterdir()} == {".gguf"}
