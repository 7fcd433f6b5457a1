"""Options that llama.cpp's tools have, with their meaning."""

import json

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly.cli.parse.usage_errors import UsageError
from woolly.gguf import open_gguf
from woolly.quantize.imatrix_file import ColumnSums, ImportanceMatrix


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(TINY["granite"], tmp_path_factory.mktemp("tools") / "tiny.gguf")


def test_text_may_be_named_by_a_flag(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("wool " * 40)
    by_place = json.loads(woolly("perplexity", model, text, "-c", "8", "-n", "2", "--json"))
    by_flag = json.loads(woolly("perplexity", "-m", model, "-f", text, "-c", "8", "-n", "2", "--json"))
    assert by_flag["perplexity"] == by_place["perplexity"]
    with pytest.raises(UsageError, match="two files are given"):
        woolly("perplexity", model, text, "-f", text)
    woolly("imatrix", "-m", model, "-f", text, "-c", "8", "-n", "1", "-o", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").is_file()


def test_tokenize_takes_a_prompt_and_prints_ids(model, tmp_path):
    ids = json.loads(woolly("tokenize", "-m", model, "-p", "wool", "--ids"))
    assert ids == json.loads(woolly("tokenize", model, "wool", "--json"))["ids"]
    (tmp_path / "text.txt").write_text("wool")
    assert woolly("tokenize", "-m", model, "-f", tmp_path / "text.txt", "--ids", "--no-bos") == f"{ids}\n"
    with pytest.raises(UsageError, match="several texts are given"):
        woolly("tokenize", model, "wool", "-p", "wool")


def test_output_tensor_may_keep_its_type(tmp_path):
    wide = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    woolly("quantize", wide, tmp_path / "out.gguf", "Q8_0", "--leave-output-tensor")
    with open_gguf(wide) as before, open_gguf(tmp_path / "out.gguf") as after:
        assert after.tensors["output.weight"].type is before.tensors["output.weight"].type


def test_importance_is_used_for_chosen_weights():
    entry = ColumnSums(np.ones((1, 4), np.float32), np.ones(1, np.float32))
    matrix = ImportanceMatrix(None, {"blk.0.attn_v.weight": entry, "blk.0.attn_q.weight": entry})
    assert list(matrix.only(("attn_v",), ()).entries) == ["blk.0.attn_v.weight"]
    assert list(matrix.only((), ("attn_v",)).entries) == ["blk.0.attn_q.weight"]


def test_first_message_of_a_chat_may_be_an_option(model, tmp_path):
    (tmp_path / "text.txt").write_text("Wool?\n")
    line = ("chat", model, "--plain", "--no-history", "-p", "wool", "-f", tmp_path / "text.txt", "--grammar")
    assert woolly(*line, 'root ::= "yes"', stdin="").strip() == "yes"
