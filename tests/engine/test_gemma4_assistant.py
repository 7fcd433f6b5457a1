"""An assistant of Gemma 4 looks at the model's own keys, guesses its tokens, and changes no text."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.cases.assistants import EPS, assistant_tensors, guess, guessing_assistant, kept, write_assistant
from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, metadata, tensors, write_tiny
from tests.engine.test_batching import drive_with_head
from woolly import LLM, ModelError, RequestError, SamplingParams, UnsupportedError
from woolly.engine import AssistantProposer
from woolly.engine.loading.draft_files import draft_token_map
from woolly.engine.loading.load import _compiled
from woolly.gguf import open_gguf
from woolly.models import draft_tensors, trace, trace_head
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.split import SplitBackend
from woolly.serving.model_manager.memory_check import estimate
from woolly.serving.settings.options import ModelOptions

TARGET = FAMILIES["gemma4"]
WINDOW = metadata(TARGET)["attention.sliding_window"]
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PROMPT = np.random.RandomState(5).randint(0, 256, 70).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("assistant")


@pytest.fixture(scope="module")
def target(folder):
    return write_tiny(TARGET, folder / "gemma4.gguf")


@pytest.fixture(scope="module")
def pair(folder):
    """A model whose layers add little to the token's embedding, and an assistant that hands it on."""
    whole = tensors(TARGET)
    for name, array in whole.items():
        if "post_attention_norm" in name or name.endswith("post_ffw_norm.weight"):
            whole[name] = array * np.float32(0.05)
        elif name.endswith("layer_output_scale.weight") or name == "output_norm.weight":
            whole[name] = np.ones_like(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cases.tiny.tensors", lambda tiny: whole)
        model = write_tiny(TARGET, folder / "right.gguf")
    own = guessing_assistant(whole["token_embd.weight"])
    return model, write_assistant(folder / "assistant-right.gguf", own, WINDOW)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_drafts_match_the_formulas(folder, target, backend):
    """The first guess after a text, and one after that, which stands at the same position."""
    own, whole, n = assistant_tensors(), tensors(TARGET), 3 * WINDOW
    head = write_assistant(folder / "assistant.gguf", own, WINDOW)
    tokens, table = PROMPT[:n], whole["token_embd.weight"]
    with LLM(target, ctx=64, threads=1, backend="reference") as llm:
        inputs = [llm.hidden(tokens, f"blk.{layer}") for layer in (3, 4, 5)]
    keys = [kept(whole, 4, inputs[0], True), kept(whole, 5, inputs[1], False)]
    last = inputs[2][-1]
    normed = last / np.sqrt(np.mean(last**2) + EPS) * whole["output_norm.weight"]
    logits, following = guess(own, table, 7, normed, keys, WINDOW)
    second, _ = guess(own, table, 9, following, keys, WINDOW)
    with open_gguf(target) as file, open_gguf(head) as other:
        plan = trace_head(file, trace(file), other)
        options = Options(threads=1, kv_type="f32", max_rows=64)
        program = get_backend(backend).compile(plan, {**file.tensors, **draft_tensors(other)}, options)
        state, draft = program.new_state(1), AssistantProposer(program)
        program.run(Batch.of([(tokens, 0, [0])]), state)
        for token, hidden, is_own, wanted in ((7, last, False, logits), (9, following, True, second)):
            batch = Batch.of([([token], n - 1, [0])])
            batch = replace(batch, hidden=hidden[None].astype(np.float32), is_hidden_normed=is_own)
            made = program.draft.run(batch, state, 0, draft._n_hidden).copy()
            got = program.draft.run(batch, state, draft._n_hidden).copy()
            np.testing.assert_allclose(got[0], wanted, rtol=0, atol=2e-2 * np.abs(wanted).max())
            if not is_own:
                np.testing.assert_allclose(made[0], following, rtol=0, atol=2e-2 * np.abs(following).max())


def test_correct_assistant_saves_steps_and_changes_no_text(pair):
    model, head = pair
    with LLM(model, ctx=256, threads=1) as plain:
        wanted = plain.generate(PROMPT, GREEDY).token_ids
        n_plain = plain.engine.n_steps
    with LLM(model, ctx=256, threads=1, speculation=head) as llm:
        assert type(llm.engine.draft) is AssistantProposer
        done = llm.generate(PROMPT, GREEDY)
        assert done.token_ids == wanted
        assert 0 < done.n_drafted_tokens <= 4 * done.n_accepted_tokens
        assert llm.engine.n_steps < n_plain
        again = llm.generate([*PROMPT, *wanted, 3], GREEDY)
        assert again.n_cached_tokens >= 64 and again.n_drafted_tokens > 0


def test_concurrent_requests_give_the_output_of_no_drafts(pair):
    requests = drive_with_head(*pair, lambda loaded: AssistantProposer(loaded.program), 8)
    assert sum(request.n_accepted for request in requests) > 0


def test_engine_drafts_match_the_formulas(folder, target, monkeypatch):
    """With pages of windows that were given back."""
    own, whole = assistant_tensors(), tensors(TARGET)
    head = write_assistant(folder / "engine.gguf", own, WINDOW)
    seen, propose = [], AssistantProposer.propose

    def recorded(self, wanted):
        guesses = propose(self, wanted)
        seen.extend((list(request.context), one) for (request, _), one in zip(wanted, guesses, strict=True))
        return guesses

    monkeypatch.setattr(AssistantProposer, "propose", recorded)
    with LLM(
        target, ctx=256, kv_tokens=4096, max_running=1, chunk=32, threads=1, kv_type="f32", speculation=head
    ) as llm:
        assert llm.engine.scheduler.visible_pages.is_bounded
        llm.generate(PROMPT, GREEDY)
    assert len(seen) > 1 and len(seen[0][1]) == 2
    with LLM(target, ctx=256, threads=1, backend="reference", speculation=None) as llm:
        for context, guesses in seen[:3]:
            inputs = [llm.hidden(context[:-1], f"blk.{layer}") for layer in (3, 4, 5)]
            keys = [kept(whole, 4, inputs[0], True), kept(whole, 5, inputs[1], False)]
            last, token = inputs[2][-1], context[-1]
            hidden = last / np.sqrt(np.mean(last**2) + EPS) * whole["output_norm.weight"]
            for guessed in guesses:
                logits, hidden = guess(own, whole["token_embd.weight"], token, hidden, keys, WINDOW)
                assert logits[guessed] > logits.max() - 0.02 * np.abs(logits).max()
                token = guessed


@pytest.mark.parametrize("name", ["gemma4", "gemma4-e"])
def test_random_assistant_changes_no_text(folder, name):
    model = write_tiny(FAMILIES[name], folder / f"{name}-random.gguf")
    tiny = FAMILIES[name]
    heads = metadata(tiny)["attention.head_count_kv"]
    head = write_assistant(
        folder / f"{name}-head.gguf", assistant_tensors(), WINDOW, **{"attention.head_count_kv": heads}
    )
    with LLM(model, ctx=256, threads=1) as plain, LLM(model, ctx=256, threads=1, speculation=head) as llm:
        done = llm.generate(PROMPT, GREEDY)
        assert done.token_ids == plain.generate(PROMPT, GREEDY).token_ids
        assert done.n_drafted_tokens > 0


def test_incompatible_assistant_gives_a_one_line_error(folder, target):
    llama = write_tiny(TINY["llama"], folder / "llama.gguf")
    head = write_assistant(folder / "fit.gguf", assistant_tensors(), WINDOW)
    with pytest.raises(ModelError, match="needs a model with both sliding-window and global layers"):
        LLM(llama, ctx=64, threads=1, speculation=head)
    wide = write_assistant(folder / "wide.gguf", assistant_tensors(), WINDOW, embedding_length_out=128)
    with pytest.raises(ModelError, match=r"wide.gguf is for a model with width 128, but gemma4.gguf has 64"):
        LLM(target, ctx=64, threads=1, speculation=wide)
    far = write_assistant(folder / "far.gguf", assistant_tensors(), WINDOW + 200)
    with pytest.raises(ModelError, match="has a larger sliding window than the model"):
        LLM(target, ctx=64, threads=1, speculation=far)
    few = Mock(draft=Mock(width=9, borrows=True), width=256)
    with open_gguf(head) as file, pytest.raises(ModelError, match="predicts 9 of 256 tokens, but has no d2t table"):
        draft_token_map(file, few)


def test_assistant_drafts_without_lookup(folder, target, monkeypatch):
    head = write_assistant(folder / "alone.gguf", assistant_tensors(), WINDOW)
    monkeypatch.setattr("woolly.llm.speculation.find_draft", lambda model: head)
    with pytest.raises(
        RequestError, match="'mtp_lookup', which this model's draft head does not support; use 'mtp' or"
    ):
        LLM(target, ctx=64, threads=1, speculation="mtp_lookup")


def test_model_split_over_devices_does_without_assistant(target):
    with open_gguf(target) as file:
        plan = replace(trace(file), draft=replace(trace(file), borrows=True))
    split = SplitBackend(Mock(), insists=False)
    with pytest.raises(UnsupportedError, match="run only on one device, but this model uses several"):
        split._compiled(plan, {}, Options(), [], Mock(shares=(1, 2)))
    backend = Mock()
    backend.compile.side_effect = lambda plan, *_: split._compiled(plan, {}, Options(), [], Mock(shares=(1, 2)))
    with pytest.raises(UnsupportedError, match="this model uses several"):
        _compiled(backend, plan, {}, Options(), needs_draft=True)
    backend.compile.side_effect = [UnsupportedError("several"), "program"]
    assert _compiled(backend, plan, {}, Options(), needs_draft=False) == "program"
    assert backend.compile.call_args.args[0].draft is None


def test_assistant_keeps_no_cache(folder, target):
    head = write_assistant(folder / "kept.gguf", assistant_tensors(), WINDOW)
    needed, plain = (estimate(target, ModelOptions(speculation=one, ctx=64)) for one in (str(head), "none"))
    assert needed.cache == plain.cache
    assert needed.weights - plain.weights == sum(array.nbytes for array in assistant_tensors().values())
