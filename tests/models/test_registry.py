"""docs/make/add-a-model.md is true: a model file is all that a new architecture needs."""

import importlib
import pkgutil
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from tests.docs.blocks import blocks_of
from woolly import LLM, models
from woolly.engine import context_limit, default_ctx
from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.models import architectures, registry, trace

RECIPE = next(block.text for block in blocks_of("docs/make/add-a-model.md") if block.language == "python")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A second folder of model files."""
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    yield tmp_path
    for name in ("recipe", "two_names"):
        sys.modules.pop(f"woolly.models.{name}", None)


def tiny(architecture, folder):
    return write_tiny(replace(TINY["qwen3"], architecture=architecture), folder / f"{architecture}.gguf")


def test_recipe_file_works_without_edits(folder):
    (folder / "recipe.py").write_text(RECIPE)
    assert set(architectures()) > {"recipe", "llama"}
    ids = [1, 5, 9]
    found = []
    for name in ("recipe", "qwen3"):
        with LLM(tiny(name, folder), backend="reference") as llm:
            found.append(llm.logits(ids))
    np.testing.assert_array_equal(*found)


def test_file_may_serve_names_that_are_not_python_identifiers(folder):
    (folder / "two_names.py").write_text(f'{RECIPE}\nARCHITECTURES = ("two-names", "second")\n')
    for name in ("two-names", "second"):
        with open_gguf(tiny(name, folder)) as file:
            assert trace(file).architecture == name
    with (
        open_gguf(tiny("two_names", folder)) as file,
        pytest.raises(
            UnsupportedError,
            match=r"architecture 'two_names' is not supported yet; similar supported architectures: two-names",
        ),
    ):
        trace(file)


def test_needs_of_an_architecture_exclude_similar_names():
    assert "it needs attention over residuals" in registry._why("kimi-k3")
    assert "similar" not in registry._why("kimi-k3") and "similar supported architectures: llama" in registry._why(
        "llama_"
    )


def test_head_table_has_every_draft_only_file():
    found = {}
    for name in (entry.name for entry in pkgutil.iter_modules(models.__path__) if not entry.ispkg):
        module = importlib.import_module(f"{models.__name__}.{name}")
        if hasattr(module, "build_draft") and not hasattr(module, "build"):
            found |= dict.fromkeys(registry._names(module), name)
    assert found == registry._HEADS


def test_module_without_build_is_not_an_architecture():
    assert not {"metadata", "params", "registry", "parts"} & set(architectures())


def test_error_names_what_is_missing_and_similar_models(tmp_path):
    says = {
        "kimi-k3": "it needs attention over residuals of earlier layers, and experts with the activation SiTU;",
        "clip": "it needs images or audio;",
    }
    for name, expected in says.items():
        writer = GGUFWriter(tmp_path / f"{name}.gguf")
        writer.add("general.architecture", name)
        writer.write()
        with open_gguf(tmp_path / f"{name}.gguf") as file, pytest.raises(UnsupportedError, match=re.escape(expected)):
            trace(file)


@pytest.mark.parametrize("name", ["grok-2"])
def test_too_large_context_is_rejected_with_the_supported_one(name, tmp_path):
    with open_gguf(write_tiny(replace(FAMILIES[name], context=4096), tmp_path / "tiny.gguf")) as file:
        assert trace(file, ctx=512).steps
        with pytest.raises(UnsupportedError, match="at most 512"):
            trace(file, ctx=513)
        plan = trace(file)
        assert plan.positions == context_limit(file, plan) == 512
        with pytest.warns(
            UserWarning, match="ctx reduced from 4096 to 512: longer contexts of tiny are not supported yet"
        ):
            assert default_ctx(file, plan, None) == 512
        assert default_ctx(file, plan, 64) == 64


@pytest.mark.parametrize(("name", "most"), [("deepseek-v32", 8), ("glm-dsa", 8), ("minimax-m3", 12)])
def test_context_with_full_attention_needs_no_index(name, most, tmp_path):
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        assert "indexer" in {step.op for step in trace(file).steps}
        short = trace(file, ctx=most)
        assert "indexer" not in {step.op for step in short.steps}
        assert short.positions == most


@pytest.mark.parametrize(
    ("name", "key", "value", "says"),
    [
        ("deepseek-v32", "block_size", 1000, "selects single positions"),
        ("glm-dsa", "local_blocks", 1, "selects single positions"),
        ("minimax-m3", "block_size", 0, "expected a positive integer"),
        ("minimax-m3", "local_blocks", -1, "expected 1 to 3"),
        ("minimax-m3", "local_blocks", 0, "expected 1 to 3"),
        ("minimax-m3", "local_blocks", 9, "expected 1 to 3"),
    ],
)
@pytest.mark.parametrize("ctx", [None, 8])
def test_blocks_not_chosen_by_an_index_are_rejected(name, key, value, says, ctx, tmp_path):
    tiny = FAMILIES[name]
    wrong = replace(tiny, context=2048, extra=tiny.extra | {f"attention.indexer.{key}": value})
    with open_gguf(write_tiny(wrong, tmp_path / "tiny.gguf")) as file:
        found = re.escape(f"attention.indexer.{key} is {value}") + f"(; |, but .*){says}$"
        with pytest.raises((ModelError, UnsupportedError), match=found):
            trace(file, ctx=ctx)


@pytest.mark.parametrize("name", ["deepseek-v32", "glm-dsa"])
def test_file_with_an_index_says_how_many_positions_it_chooses(name, tmp_path):
    tiny = FAMILIES[name]
    extra = {key: value for key, value in tiny.extra.items() if key != "attention.indexer.top_k"}
    with (
        open_gguf(write_tiny(replace(tiny, extra=extra), tmp_path / "tiny.gguf")) as file,
        pytest.raises(ModelError, match=r"attention\.indexer\.top_k is missing"),
    ):
        trace(file, ctx=64)
