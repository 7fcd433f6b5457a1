"""A head of DFlash reads layers of a model, fills in a block of its tokens at once, and changes no text."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from tests.cases.dflash import MASK, dflash_features, dflash_logits, dflash_tensors, guessing_dflash, write_dflash
from tests.cases.tiny import TINY, tensors, write_tiny
from tests.engine.test_batching import drive_with_head
from woolly import LLM, ModelError, RequestError, SamplingParams, UnsupportedError
from woolly.engine import DFlashProposer
from woolly.engine.drafts.mtp import _Waiting
from woolly.engine.loading.load import load_model
from woolly.gguf import open_gguf
from woolly.models import trace, trace_head
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.gpu.program import GpuProgram

TARGET = replace(TINY["llama"], name="llama-dflash", n_layers=4)
LAYERS = [1, 3]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPT = (np.random.RandomState(5).randint(0, 128, 70) * 2).tolist()  # the head that is right knows even tokens


def windowed(n):
    """Keys of a head whose first layer has a window."""
    return {"attention.sliding_window": n, "attention.sliding_window_pattern": [True, False]} if n else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dflash")


@pytest.fixture(scope="module")
def target(folder):
    return write_tiny(TARGET, folder / "target.gguf")


@pytest.fixture(scope="module")
def pair(folder):
    """A model that says its last token again, because its layers add little, and a head that does the same."""
    whole = tensors(TARGET)
    whole["token_embd.weight"] *= 8
    whole["output.weight"] = whole["token_embd.weight"]
    for name, array in whole.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            whole[name] = array * np.float32(0.02)
        elif "norm.weight" in name:
            whole[name] = np.ones_like(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cases.tiny.tensors", lambda tiny: whole)
        model = write_tiny(replace(TARGET, name="right"), folder / "right.gguf")
    head = guessing_dflash(len(LAYERS), whole["token_embd.weight"])
    return model, write_dflash(folder / "dflash-right.gguf", head, LAYERS)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("window", [0, 9])
def test_drafted_block_matches_the_published_code(folder, target, backend, window):
    """Features of a text, then logits of two blocks behind it; rows of the second overwrite those of the first."""
    own = dflash_tensors(len(LAYERS))
    head = write_dflash(folder / f"dflash-random-{window}.gguf", own, LAYERS, **windowed(window))
    tokens, whole = PROMPT[:40], tensors(TARGET)
    with LLM(target, ctx=64, threads=1, backend="reference") as llm:
        inputs = [llm.hidden(tokens, f"blk.{layer - 1}") for layer in LAYERS]
    features = dflash_features(own, inputs)
    with open_gguf(target) as file, open_gguf(head) as other:
        plan = trace_head(file, trace(file), other)
        all_tensors = {**file.tensors, **{f"head.{name}": tensor for name, tensor in other.tensors.items()}}
        program = get_backend(backend).compile(plan, all_tensors, Options(threads=1, kv_type="f32", max_rows=64))
        draft = DFlashProposer(program)
        rows = program.run(Batch.of([(tokens, 0, [0, 1])]), program.new_state(2), 0, draft.step + 1).copy()
        np.testing.assert_allclose(rows, features, rtol=0, atol=2e-3)
        draft.attach(2)
        for begin, first, n_masks in ((0, 39, 5), (39, 40, 3)):
            draft._store([(tokens[begin:first], begin, [0, 1], rows[begin:first])])
            block = [9, *[MASK] * n_masks]
            batch = Batch.of([(block, first, [0, 1])], range(1, n_masks + 1))
            attn_ranges = np.array([(first, first + len(block))] * len(block), np.int32)
            batch = replace(batch, attn_ranges=attn_ranges)
            mine = program.draft.run(batch, draft._pages, draft._n_stored).copy()
            matrices = whole["token_embd.weight"], whole["output.weight"]
            wanted = dflash_logits(own, features[:first], block, *matrices, window)
            np.testing.assert_allclose(mine, wanted[1:], rtol=0, atol=2e-2 * np.abs(wanted).max())


def test_correct_head_saves_steps_and_changes_no_text(pair):
    model, _ = pair
    with LLM(model, ctx=256, threads=1, speculation="none") as plain:
        wanted = plain.generate(PROMPT, GREEDY).token_ids
        n_plain = plain.engine.n_steps
    with LLM(model, ctx=256, threads=1) as llm:  # found beside it
        assert isinstance(llm.engine.draft, DFlashProposer)
        done = llm.generate(PROMPT, GREEDY)
        assert done.token_ids == wanted
        assert 0 < done.n_drafted_tokens <= 2 * done.n_accepted_tokens
        assert llm.engine.n_steps < n_plain
        again = llm.generate([*PROMPT, *wanted, 4], GREEDY)
        assert again.n_cached_tokens >= 64


def test_concurrent_requests_give_the_output_of_no_drafts(pair):
    requests = drive_with_head(*pair, lambda loaded: DFlashProposer(loaded.program, loaded.draft_ids), 6)
    assert sum(request.n_drafted for request in requests) > 0


def test_waiting_rows_are_stored_even_if_a_block_has_no_room(pair, monkeypatch):
    loaded = load_model(pair[0], "cpu", Options(threads=1, max_rows=8), draft=True, draft_file=pair[1])
    draft, width = DFlashProposer(loaded.program, loaded.draft_ids), loaded.program.draft.running_plan.values[0].width
    draft.attach(3)
    requests, stored = [], []
    for i in range(3):
        requests.append(Mock(context=PROMPT[:5], pages=[i], n_shifts=0, n_preemptions=0))
        draft._waiting[requests[i]] = _Waiting(0, 0, 1, np.ones((4, width), np.float32))
    store = draft._store
    monkeypatch.setattr(draft, "_store", lambda rows: store(rows) or stored.extend(rows))
    guesses = draft.propose([(requests[0], 3), (requests[1], 4), (requests[2], 0)])
    assert [len(one) for one in guesses] == [3, 0, 0]  # four rows of eight are left, and a block of four masks has five
    assert [(rows[1], list(rows[2]), len(rows[3])) for rows in stored] == [(1, [i], 3) for i in range(3)]
    loaded.close()


@pytest.mark.parametrize("window", [0, 9])
def test_random_head_changes_no_text(folder, target, window):
    head = write_dflash(folder / f"dflash-any-{window}.gguf", dflash_tensors(len(LAYERS)), LAYERS, **windowed(window))
    with LLM(target, ctx=256, threads=1) as plain, LLM(target, ctx=256, threads=1, speculation=head) as llm:
        done = llm.generate(PROMPT, GREEDY)
        assert done.token_ids == plain.generate(PROMPT, GREEDY).token_ids
        assert done.n_drafted_tokens > 0


def test_incompatible_head_gives_a_one_line_error(folder, target, pair):
    own = dflash_tensors(len(LAYERS))
    cases = {
        "far": (own, [1, 9], {}, "the head reads layer 9, but the llama model has 4"),
        "unmasked": (own, LAYERS, {"mask": None}, "mask_token_id is None, which is not a token of the vocabulary"),
        "short": (own, LAYERS, {"block_size": 1}, "predicts blocks of 1 tokens; expected at least"),
        "narrow": (own, LAYERS, windowed(5), "blocks of 6 tokens do not fit the draft head's window of 5"),
        "spark": (own | {"markov_w1.weight": np.ones((320, 8), np.float32)}, LAYERS, {}, "DSpark.*not supported yet"),
    }
    for name, (weights, layers, keys, sentence) in cases.items():
        head = write_dflash(folder / f"{name}.gguf", weights, layers, **keys)
        with pytest.raises((ModelError, UnsupportedError), match=sentence):
            LLM(target, ctx=64, threads=1, speculation=head)
    with open_gguf(pair[0]) as file, open_gguf(pair[1]) as other:
        plan, gpu = trace_head(file, trace(file), other), SimpleNamespace(level="none", name="none")
        with pytest.raises(UnsupportedError, match="block-diffusion drafts run only on the CPU"):
            GpuProgram(gpu, plan, file.tensors, Options())
    with pytest.raises(UnsupportedError, match="dflash is a draft head for another model; open that model"):
        LLM(pair[1], ctx=64, threads=1)
    with pytest.raises(RequestError, match="which this model's draft head does not support"):
        LLM(pair[0], ctx=64, threads=1, speculation="mtp_lookup")
