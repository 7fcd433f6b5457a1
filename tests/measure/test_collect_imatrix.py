"""Importance that a text gives to columns: the squares that a NumPy loop counts, whatever the threads."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.latents import LATENTS
from tests.cases.tiny import TINY, write_tiny
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.measure.collect_imatrix import collect_importance
from woolly.models import trace
from woolly.quantize import write_imatrix
from woolly.quantize.recipe import is_weight
from woolly.runtime import Batch, Options, get_backend
from woolly.tokens import Tokenizer

TEXT = "the quick brown fox jumps over the lazy dog, and once more. " * 4
CTX = 32


def squares_of_the_reference(path, tokens):
    """Sums of squares of the inputs of all linears, (matrices, columns), from the reference's own values."""
    with open_gguf(path) as file:
        plan = trace(file, "logits", None, CTX)
        program = get_backend("reference").compile(plan, file.tensors, Options())
        out = {}
        for window in tokens:
            batch, state = Batch.of([(window, 0, range(1))], [CTX - 1]), program.new_state(1)
            for index, step in enumerate(plan.steps):
                if step.op in ("linear", "per_head_linear") and step.weights[0].tensor.startswith("blk."):
                    name, shape = step.weights[0].tensor, step.weights[0].shape
                    x = program._values[step.inputs[0]].astype(np.float64).reshape(CTX, -1, shape[-1])
                    out[name] = out.get(name, 0) + np.sum(x * x, axis=0)
                program.run(batch, state, index, index + 1)
    return out


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_sums_match_the_reference(tmp_path, name):
    path = write_tiny(TINY[name], tmp_path / "tiny.gguf")
    found = collect_importance(path, TEXT, tmp_path / "i.gguf", ctx=CTX, chunks=2, threads=1)
    with open_gguf(path) as file:
        ids = Tokenizer.from_metadata(file.metadata).encode(TEXT, add_special=True, parse_special=False)
    expected = squares_of_the_reference(path, [ids[:CTX], ids[CTX : 2 * CTX]])
    assert found.entries.keys() == expected.keys()
    for weight, sums in expected.items():
        np.testing.assert_allclose(found.entries[weight].sums, sums, rtol=0.05, atol=1e-3 * sums.max())
        assert found.entries[weight].counts == 2 * CTX


def test_file_is_the_same_for_every_number_of_threads(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    for threads in (1, 2):
        write_imatrix(
            collect_importance(path, TEXT, tmp_path / f"{threads}.gguf", ctx=CTX, threads=threads, output=True)
        )
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()


def test_each_expert_has_its_own_sums(tmp_path):
    path = write_tiny(FAMILIES["qwen3moe"], tmp_path / "tiny.gguf")
    found = collect_importance(path, TEXT, tmp_path / "i.gguf", ctx=CTX, chunks=1, threads=1)
    with open_gguf(path) as file:
        down = file.tensors["blk.0.ffn_down_exps.weight"]
    entry = found.entries[down.name]
    assert entry.sums.shape == (down.shape[0], down.shape[-1])
    assert entry.counts.sum() == 2 * CTX  # two experts for each row
    assert found.entries["blk.0.ffn_gate_exps.weight"].counts.tolist() == entry.counts.tolist()


def test_each_head_matrix_has_its_own_sums(tmp_path):
    path = write_tiny(replace(LATENTS["deepseek-v3"], n_layers=1), tmp_path / "tiny.gguf")
    found = collect_importance(path, TEXT, tmp_path / "i.gguf", ctx=CTX, chunks=1, threads=1)
    with open_gguf(path) as file:
        ids = Tokenizer.from_metadata(file.metadata).encode(TEXT, add_special=True, parse_special=False)
        weights = {name for name, one in file.tensors.items() if name.startswith("blk.") and is_weight(one)}
        heads = {f"blk.0.attn_{x}_b.weight": file.tensors[f"blk.0.attn_{x}_b.weight"] for x in "kv"}
        assert all(found.columns_of(tensor) is not None for tensor in heads.values())
    assert weights <= found.entries.keys()  # whatever a mix makes smaller
    expected = squares_of_the_reference(path, [ids[:CTX]])
    for name, tensor in heads.items():
        assert found.entries[name].counts.tolist() == [CTX] * tensor.shape[0]
        np.testing.assert_allclose(
            found.entries[name].sums, expected[name], rtol=0.05, atol=1e-3 * expected[name].max()
        )


def test_too_short_text_is_rejected(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    with pytest.raises(RequestError, match="use a longer text"):
        collect_importance(path, "few", tmp_path / "i.gguf", ctx=CTX)
