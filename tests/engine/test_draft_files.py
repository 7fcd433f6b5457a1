"""Draft models in separate files save as many steps as embedded ones, and change no text."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.mtp import MTP, RAW, split_block, write_guessing
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, ModelError, SamplingParams, UnsupportedError
from woolly.cli.commands.show import _facts
from woolly.engine import MtpLookupProposer, MtpProposer
from woolly.engine.drafts.draft_cost import DraftCost
from woolly.engine.drafts.proposer import DraftLength
from woolly.engine.drafts.speculation_budget import SpeculationBudget
from woolly.engine.loading.load import load_model
from woolly.gguf import GGUFWriter, open_gguf
from woolly.runtime import Batch, Options
from woolly.serving.model_manager.memory_check import estimate
from woolly.serving.settings.options import ModelOptions
from woolly.store.inventory import pulled_models

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPT = np.random.RandomState(5).randint(0, 256, 50).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("draft-files")


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """Guesses cost nothing, and two are always made: how many are right does not depend on a clock."""
    monkeypatch.setattr(DraftCost, "is_due", lambda self, n: False)
    monkeypatch.setattr(SpeculationBudget, "may_draft", lambda self, request: True)
    monkeypatch.setattr(DraftLength, "next", lambda self, cost: 2)


@functools.cache
def files(name, folder):
    """A model with its block, the model without it, and the block's file beside it."""
    whole = write_guessing((MTP | RAW)[name], folder / f"whole-{name}.gguf", 0.05)
    own = folder / name
    own.mkdir()
    model, block = own / f"{name}-F32.gguf", own / f"mtp-{name}-Q8_0.gguf"
    split_block(whole, model, block)
    return whole, model, block


def answers(path, **options):
    """Tokens of an answer, how many were guessed, how many of them were right, and what guessed."""
    with LLM(path, ctx=256, threads=1, **options) as llm:
        done = llm.generate(PROMPT, GREEDY)
        return done.token_ids, done.n_drafted_tokens, done.n_accepted_tokens, type(llm.engine.draft)


@pytest.mark.parametrize("name", ["qwen35", "glm4moe", "deepseek2", "mimo2"])
def test_external_block_drafts_like_the_embedded_one(folder, name):
    whole, model, block = files(name, folder)
    wanted = answers(whole)
    assert wanted[2] > 3 and wanted[3] is MtpProposer
    assert answers(model) == wanted
    assert answers(model, speculation=block) == wanted
    assert answers(model, speculation="mtp_lookup")[::3] == (wanted[0], MtpLookupProposer)
    assert answers(model, speculation=None) == (wanted[0], 0, 0, type(None))
    assert answers(whole, speculation=block) == wanted


def test_block_of_another_model_is_rejected_by_name(folder):
    _, model, block = files("glm4moe", folder)
    _, other, foreign = files("deepseek2", folder)
    with pytest.raises(ModelError, match=r"mtp-deepseek2-Q8_0.gguf is for a model with architecture deepseek2, but"):
        LLM(model, ctx=64, threads=1, speculation=foreign)
    for key, value, sentence in (
        ("glm4moe.embedding_length", 128, "a model with width 128, but glm4moe-F32.gguf has 64"),
        ("glm4moe.block_count", 9, "a model with layers 8, but glm4moe-F32.gguf has 3"),
        ("tokenizer.ggml.tokens", ["a"] * 256, "have different vocabularies"),
    ):
        wrong = changed(block, folder / "wrong.gguf", key, value)
        with pytest.raises(ModelError, match=sentence):
            LLM(model, ctx=64, threads=1, speculation=wrong)
    beside = changed(block, other.parent / "mtp-F16.gguf", "glm4moe.embedding_length", 128)
    foreign.rename(other.parent / "kept")
    with pytest.warns(UserWarning, match=r"speculation is off: mtp-F16.gguf cannot be used: .* architecture"):
        assert answers(other)[1] == 0
    beside.unlink()
    (other.parent / "kept").rename(foreign)


def test_model_given_as_a_block_replaces_nothing(folder):
    """Another whole model of the same shape as `mtp-NAME.gguf`: a sentence, and the logits of the model itself."""
    own = folder / "named"
    own.mkdir()
    model, other = (write_tiny(replace(TINY["llama"], name=name), own / f"{name}.gguf") for name in "12")
    with LLM(model, ctx=64, threads=1) as llm:
        wanted = llm.logits(PROMPT[:9])
    other.rename(own / "mtp-1.gguf")
    sentence = r"mtp-1.gguf has neither an MTP block nor a draft head for 1.gguf"
    with pytest.warns(UserWarning, match=sentence), LLM(model, ctx=64, threads=1) as llm:
        np.testing.assert_array_equal(llm.logits(PROMPT[:9]), wanted)
    with pytest.raises(ModelError, match="neither an MTP block"):
        LLM(model, ctx=64, threads=1, speculation="mtp")


def test_model_layers_in_a_block_file_are_not_read(folder):
    """Neither if the block guesses, nor if it is refused."""
    _, model, block = files("glm4moe", folder)
    with LLM(model, ctx=64, threads=1, speculation=None) as llm:
        wanted = llm.logits(PROMPT[:9])
    foreign = np.ones((64, 64), np.float32)
    more = changed(block, folder / "more.gguf", "general.name", "more", {"blk.1.attn_output.weight": foreign})
    with LLM(model, ctx=64, threads=1, speculation=more) as llm:
        assert type(llm.engine.draft) is MtpProposer
        np.testing.assert_array_equal(llm.logits(PROMPT[:9]), wanted)
    unread = {"blk.1.attn_output.weight": foreign, "blk.3.unknown.weight": foreign}
    refused = changed(block, folder / "refused.gguf", "general.name", "refused", unread)
    with pytest.warns(UserWarning, match="speculation is off"):
        loaded = load_model(model, "cpu", Options(threads=1), draft=None, draft_file=refused)
    assert loaded.program.draft is None and loaded.draft_file is None
    state = loaded.program.new_state(1)
    logits = loaded.program.run(Batch.of([(PROMPT[:9], 0, [0])], range(9)), state).copy()
    loaded.close()
    np.testing.assert_array_equal(logits, wanted)


@pytest.mark.parametrize(("key", "value"), [("glm4moe.block_count", "many"), ("tokenizer.ggml.tokens", 7)])
def test_block_file_with_mistyped_keys_stops_a_model_only_if_requested(folder, key, value):
    _, model, block = files("glm4moe", folder)
    broken = changed(block, folder / f"broken-{key}.gguf", key, value, {})
    with pytest.warns(UserWarning, match="speculation is off"):
        loaded = load_model(model, "cpu", Options(threads=1), draft=None, draft_file=broken)
    assert loaded.program.draft is None
    loaded.close()
    with pytest.raises(ModelError, match=r"has invalid metadata|have different vocabularies"):
        load_model(model, "cpu", Options(threads=1), draft=True, draft_file=broken)


def test_draft_file_without_a_draft_is_reported(folder):
    _, model, block = files("glm4moe", folder)
    with open_gguf(block) as file:
        count = file.metadata["glm4moe.block_count"] - file.metadata["glm4moe.nextn_predict_layers"]
    none = changed(block, folder / "none.gguf", "glm4moe.nextn_predict_layers", 0)
    none = changed(none, folder / "none-counted.gguf", "glm4moe.block_count", count)
    with pytest.warns(UserWarning, match=r"speculation is off: none-counted.gguf has no MTP block"):
        loaded = load_model(model, "cpu", Options(threads=1), draft=None, draft_file=none)
    assert loaded.program.draft is None
    loaded.close()


def test_block_without_its_model_is_not_a_model(folder, monkeypatch):
    _, model, block = files("glm4moe", folder)
    with pytest.raises(UnsupportedError, match="has only the draft block of a glm4moe model; open the"):
        LLM(block, ctx=64, threads=1)
    monkeypatch.setattr("woolly.store.inventory.models_folder", lambda: model.parent)
    assert [stored.path for stored in pulled_models()] == [model]


def test_block_memory_is_counted(folder):
    _, model, block = files("glm4moe", folder)
    with open_gguf(block) as file:
        own = sum(tensor.n_bytes for name, tensor in file.tensors.items() if name.startswith("blk."))
    needed, plain = (estimate(model, ModelOptions(speculation=one, ctx=64)) for one in ("auto", "none"))
    assert needed.weights - plain.weights == own
    assert needed.cache > plain.cache
    with open_gguf(model) as file:
        facts = _facts(file, 64, None, False)
        assert facts["memory"]["weights"] == own + sum(t.n_bytes for t in file.tensors.values())


def changed(path, target, key, value, more=None):
    """A copy of a file with another value of one key, and with more tensors."""
    with open_gguf(path) as file:
        writer = GGUFWriter(target)
        for name in file.metadata:
            if name != key:
                writer.add_raw(name, file.metadata.raw(name))
        writer.add(key, value)
        for tensor in file.tensors.values():
            writer.add_raw_tensor(tensor.name, tensor.type, tensor.shape, tensor.data)
        for name, array in (more or {}).items():
            writer.add_tensor(name, array)
        writer.write()
    return target
