"""Folders of checkpoints: supported contents, and one-line errors without partial files for the others."""

import json
import random
import re
import shutil
import sys

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.convert.folders import checkpoint_of, safetensors, tokenizer
from woolly import LLM
from woolly.cli.first_run.checkpoint import convert_checkpoint
from woolly.cli.parse.usage_errors import UsageError
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.errors import RequestError, UnsupportedError, WoollyError
from woolly.gguf import open_gguf
from woolly.quant import GGMLType
from woolly.quantize import ImportanceMatrix, write_imatrix
from woolly.quantize.imatrix_file import ColumnSums


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("tiny") / "llama.gguf")


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A sound folder that no test changes."""
    with open_gguf(tiny) as file:
        return checkpoint_of(file, tmp_path_factory.mktemp("whole") / "llama")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "llama")


def converted(folder, path, type_name=None):
    plan = plan_conversion(open_checkpoint(folder))
    write_draft(plan, choose_types(plan, type_name), path, threads=2)
    return path


def edited(path, **changes):
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: one for key, one in value.items() if one is not None}))


def test_shards_give_the_same_file(tiny, whole, tmp_path):
    with open_gguf(tiny) as file:
        split = checkpoint_of(file, tmp_path / "llama", shards=3)
    one, other = converted(whole, tmp_path / "one.gguf"), converted(split, tmp_path / "other.gguf")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_f16_tensors_of_a_checkpoint_stay_f16(dtype, tiny, tmp_path):
    with open_gguf(tiny) as file:
        folder = checkpoint_of(file, tmp_path / "llama")
        arrays = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
    stored = open_checkpoint(folder).tensors
    halves, kinds = {}, {}
    for name, one in stored.items():
        values = one.array()
        halves[name] = (
            (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else values.astype(np.float16)
        )
        kinds[name] = dtype
    (folder / "model.safetensors").write_bytes(safetensors(halves, kinds))
    with open_gguf(converted(folder, tmp_path / "out.gguf")) as made:
        assert made.tensors["blk.0.ffn_up.weight"].type is GGMLType[dtype]
        assert made.tensors["blk.0.attn_norm.weight"].type is GGMLType.F32
        for name, values in arrays.items():
            wanted = values.view(np.uint32) & 0xFFFF0000 if dtype == "BF16" else None
            wanted = values.astype(np.float16).astype(np.float32) if wanted is None else wanted.view(np.float32)
            assert np.array_equal(made.tensors[name].dequantize(), wanted), name


def test_type_option_matches_quantize(tiny, whole, tmp_path):
    direct = converted(whole, tmp_path / "direct.gguf", "Q8_0")
    woolly("quantize", tiny, tmp_path / "later.gguf", "Q8_0")
    with open_gguf(direct) as one, open_gguf(tmp_path / "later.gguf") as other:
        for name, tensor in other.tensors.items():
            assert one.tensors[name].type is tensor.type
            assert one.tensors[name].data.tobytes() == tensor.data.tobytes(), name


def test_imatrix_gives_the_bytes_of_quantize(tmp_path, monkeypatch):
    plain = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", plain)  # which other tests prove
    random = np.random.default_rng(3)
    with open_gguf(write_tiny(FAMILIES["qwen3moe"], tmp_path / "tiny.gguf")) as file:
        folder = checkpoint_of(file, tmp_path / "folder")
        entries = {
            key: ColumnSums(np.exp(random.normal(0, 2, (n, one.shape[-1]))).astype(np.float32), np.ones(n, np.float32))
            for key, one in file.tensors.items()
            if key.startswith("blk.") and len(one.shape) > 1
            for n in [one.shape[0] if len(one.shape) == 3 else 1]
        }
    write_imatrix(ImportanceMatrix(tmp_path / "imatrix.gguf", entries, ("text.txt",), 3, 64))
    by = ["IQ4_NL", "--imatrix", tmp_path / "imatrix.gguf"]
    woolly("convert", folder, tmp_path / "direct.gguf", *by)
    woolly("convert", folder, tmp_path / "plain.gguf", "IQ4_NL")
    woolly("quantize", converted(folder, tmp_path / "own.gguf"), tmp_path / "later.gguf", *by)
    direct = (tmp_path / "direct.gguf").read_bytes()
    assert direct == (tmp_path / "later.gguf").read_bytes()
    with open_gguf(tmp_path / "direct.gguf") as one, open_gguf(tmp_path / "plain.gguf") as other:
        changed = [
            key for key, tensor in one.tensors.items() if tensor.data.tobytes() != other.tensors[key].data.tobytes()
        ]
    assert {"blk.0.ffn_up_exps.weight", "blk.1.attn_q.weight"} <= set(changed)
    with pytest.raises(UsageError, match="--imatrix needs a type such as Q4_K_M"):
        woolly("convert", folder, tmp_path / "more.gguf", *by[1:])


def test_converted_model_answers_like_the_original(tiny, whole, tmp_path):
    facts = json.loads(woolly("convert", whole, tmp_path / "out.gguf", "--json"))
    assert facts["architecture"] == "llama" and facts["lines_compared"] >= 1500
    with LLM(tiny) as one, LLM(tmp_path / "out.gguf") as other:
        assert np.array_equal(one.logits([1, 2, 3]), other.logits([1, 2, 3]))
    with pytest.raises(RequestError, match="already exists"):
        woolly("convert", whole, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["./nothere", "../nothere", "nothere", "/nowhere/at/all"])
def test_missing_folder_is_not_looked_up_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=f"^no folder {re.escape(name)}; expected"):
        woolly("convert", name, "out.gguf")


def test_run_converts_a_folder_once(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path / "home"))
    said = []
    monkeypatch.setattr("woolly.cli.first_run.checkpoint.print_status", said.append)
    answers = [woolly("run", whole, "the", "-n", "2", "--raw", "--temperature", "0") for _ in range(2)]
    assert len(said) == 1 and "it is converted once" in said[0]
    assert answers[0] == answers[1]
    assert len(list((tmp_path / "home" / "models" / "converted").iterdir())) == 1


def test_special_tokens_and_template_are_converted(folder, tmp_path):
    edited(folder / "tokenizer_config.json", chat_template="{{ messages }}", pad_token="<|pad_300|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [265, 270]}))
    with open_gguf(converted(folder, tmp_path / "out.gguf")) as made:
        keys = made.metadata
        assert keys["tokenizer.chat_template"] == "{{ messages }}"
        assert keys["tokenizer.ggml.padding_token_id"] == 300
        assert (keys["tokenizer.ggml.eos_token_id"], keys["tokenizer.ggml.eot_token_id"]) == (265, 270)


def test_rows_without_a_token_are_padded(folder, tmp_path):
    value = tokenizer()
    value["added_tokens"] = value["added_tokens"][:10]
    (folder / "tokenizer.json").write_text(json.dumps(value))
    with open_gguf(converted(folder, tmp_path / "out.gguf")) as made:
        tokens = list(made.metadata["tokenizer.ggml.tokens"])
        assert len(tokens) == 320 and tokens[319] == "[PAD319]"


def test_differing_split_is_rejected_with_the_line(folder):
    value = tokenizer()
    value["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[aeiou]"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(UnsupportedError, match="no supported pre-tokenizer"):
        plan_conversion(open_checkpoint(folder))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"architectures": ["NobodyForCausalLM"]}, "'NobodyForCausalLM' cannot be converted yet"),
        (
            {"architectures": ["WhisperForConditionalGeneration"]},
            r"use a whisper\.cpp file .*`woolly pull whisper:base`",
        ),
        ({"architectures": None}, "has no architectures"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "expected an integer"),
        ({"num_hidden_layers": 3}, "blk.2.*is missing"),
        ({"num_hidden_layers": 10**9}, "at most 4096"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ({"num_attention_heads": 7}, "."),
    ],
)
def test_wrong_configuration_gives_a_one_line_error(folder, change, sentence):
    edited(folder / "config.json", **change)
    with pytest.raises(WoollyError, match=sentence):
        plan_conversion(open_checkpoint(folder))


def test_unknown_tensor_is_rejected_by_name(folder):
    path = folder / "model-2.safetensors"
    path.write_bytes(safetensors({"model.layers.0.mlp.novelty.weight": np.zeros((2, 2), np.float32)}))
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.mlp\.novelty\.weight"):
        plan_conversion(open_checkpoint(folder))


def test_pickles_are_rejected(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedError, match="can run code"):
        open_checkpoint(folder)


def _mutations(data, chance):
    """Headers, names, numbers and lengths that are not what they were."""
    text = data.decode("latin-1")
    numbers = [found.span() for found in re.finditer(r"\d+", text)]
    words = [found.span() for found in re.finditer(r'"[^"]*"', text)]
    while True:
        kind = chance.randrange(5)
        if kind == 0 and numbers:
            first, last = chance.choice(numbers)
            yield text[:first] + chance.choice(["0", "-1", "1e9", "99999999999", "null", "true", '"7"']) + text[last:]
        elif kind == 1 and words:
            first, last = chance.choice(words)
            yield text[:first] + chance.choice(['""', "null", "[]", "{}", '"\\u0000"', "12"]) + text[last:]
        elif kind == 2:
            yield text[: chance.randrange(len(text))]
        elif kind == 3:
            at = chance.randrange(len(text))
            yield text[:at] + chr(chance.randrange(256)) + text[at + 1 :]
        else:
            at = chance.randrange(len(text))
            yield text[:at] + chance.choice(["[" * 2000, "\xff", "}", ",", '"']) + text[at:]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "header", "index", "length"])
def test_mutated_files_give_a_one_line_error_and_leave_nothing(name, tiny, tmp_path, monkeypatch):
    """80 of each; the proof of tokens takes no part, since it would be most of the time."""
    plain = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", plain)
    with open_gguf(tiny) as file:
        folder = checkpoint_of(file, tmp_path / "llama", shards=2 if name == "index" else 1)
    weights = folder / "model.safetensors"
    path = {"header": weights, "length": weights, "index": folder / "model.safetensors.index.json"}.get(
        name, folder / name
    )
    before = path.read_bytes()
    size = int.from_bytes(before[:8], "little") if path == weights else 0
    part = before[8 : 8 + size] if name == "header" else before[:8] if name == "length" else before
    chance, out, refused = random.Random(name), tmp_path / "out", 0
    out.mkdir()
    mutations = _mutations(part, chance)
    for _ in range(80):
        text = next(mutations).encode("latin-1")
        if name == "header":
            text = len(text).to_bytes(8, "little") + text + before[8 + size :]
        elif name == "length":
            text += before[8:]
        path.write_bytes(text)
        try:
            plan = plan_conversion(open_checkpoint(folder))
            write_draft(plan, choose_types(plan, None), out / "out.gguf", threads=1)
            (out / "out.gguf").unlink()
        except WoollyError as error:
            refused += 1
            assert str(error) and "\n" not in str(error) and len(str(error)) < 600
        assert not list(out.iterdir())
    assert refused > 10 or name == "tokenizer_config.json"


def test_model_file_needs_no_converter(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "woolly.convert", None)  # an import of it fails
    assert convert_checkpoint(str(tmp_path / "model.gguf")) == str(tmp_path / "model.gguf")
