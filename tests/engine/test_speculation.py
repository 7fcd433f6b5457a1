"""Guessing ahead saves steps and changes no text."""

import random
from dataclasses import replace
from itertools import pairwise
from unittest.mock import Mock

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, RequestError, SamplingParams
from woolly.engine import DraftModelProposer, Engine, PromptLookupProposer, check_vocabulary
from woolly.engine.drafts.draft_cost import DraftCost
from woolly.engine.drafts.proposer import DraftLength
from woolly.engine.drafts.speculation import Speculation
from woolly.engine.drafts.speculation_budget import SpeculationBudget
from woolly.engine.threads.completion import Completion

KINDS = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 4, "temperature": 1.1},
    "penalized": {"seed": 4, "repeat_penalty": 1.4, "presence_penalty": 0.5, "dry_multiplier": 0.7},
    "mirostat": {"seed": 4, "mirostat": 2},
    "stopped": {"temperature": 0, "stop": ("the", "\x00")},
    "likely": {"temperature": 0, "logprobs": 3, "logit_bias": {97: 3.0, 98: 3.0}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speculation")


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(write_tiny(TINY["llama"], folder / "tiny.gguf"), ctx=256) as model:
        yield model


class Oracle:
    """Knows the answer, and errs at chosen places."""

    def __init__(self, answer, wrong=()):
        self.answer, self.wrong = answer, wrong

    def propose(self, wanted):
        out = []
        for request, n in wanted:
            first = len(request.output)
            guess = self.answer[first : first + n]
            out.append([t if first + i not in self.wrong else (t + 1) % 256 for i, t in enumerate(guess)])
        return out

    def forget(self, request):
        pass


def prompt():
    return [7, 8, 9, 10, 11] * 8


def run(llm, params, draft, **options):
    engine = Engine(llm.engine.program, llm.tokenizer, **{"ctx": 256, **options}, draft=draft)
    request = engine.add(engine.new_request(prompt(), params))
    n_steps = 0
    while request.finish_reason is None:
        engine.step()
        n_steps += 1
    assert engine.scheduler.pages.n_free == engine.scheduler.pages.n_pages
    return request, n_steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draft", ["lookup", "itself", "another", "right", "often wrong"])
def test_text_is_the_same_with_and_without_drafts(llm, folder, kind, draft):
    params = SamplingParams(max_tokens=60, ignore_eos=True, **KINDS[kind])
    plain, n_plain = run(llm, params, None)
    with LLM(write_tiny(TINY["llama-linear"], folder / "another.gguf"), ctx=256) as other:
        drafts = {
            "lookup": PromptLookupProposer(),
            "itself": DraftModelProposer(llm.engine.program, 512, 256),
            "another": DraftModelProposer(other.engine.program, 512, 256),
            "right": Oracle(plain.output),
            "often wrong": Oracle(plain.output, wrong=range(3, 60, 3)),
        }
        guessed, n_guessed = run(llm, params, drafts[draft])
    for name in ("output", "text", "logprobs", "finish_reason", "stop_reason"):
        assert getattr(guessed, name) == getattr(plain, name), name
    if draft == "right" and len(plain.output) > 5:
        assert n_guessed < n_plain * 0.6
        assert guessed.n_accepted == guessed.n_drafted


def test_self_drafting_model_is_always_right(llm):
    request, n_steps = run(
        llm,
        SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
        DraftModelProposer(llm.engine.program, 512, 256),
    )
    assert request.n_accepted == request.n_drafted > 40
    assert n_steps < 20


def test_drafts_never_preempt_a_request(llm):
    engine = Engine(
        llm.engine.program,
        llm.tokenizer,
        ctx=128,
        kv_tokens=128,
        draft=DraftModelProposer(llm.engine.program, 512, 256),
    )
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    request = engine.add(engine.new_request(list(range(64)), params))
    while not engine.is_idle:
        engine.step()
    assert (len(request.output), request.n_preemptions) == (64, 0)


def test_draft_model_frees_its_pages_at_the_end_of_the_request(llm):
    program = llm.engine.program
    draft = DraftModelProposer(program, 512, 256)
    engine = Engine(program, llm.tokenizer, ctx=256, chunk=32, draft=draft)
    request = engine.add(
        engine.new_request(list(range(200)), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    )
    while not engine.is_idle:
        engine.step()
    assert request.n_accepted > 0
    assert draft._pages.n_free == draft._pages.n_pages
    assert not draft._tracks


def test_full_draft_cache_only_means_no_drafts(llm):
    engine = Engine(
        llm.engine.program,
        llm.tokenizer,
        ctx=256,
        kv_tokens=1024,
        draft=DraftModelProposer(llm.engine.program, 64, 256),
    )
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    requests = [engine.add(engine.new_request([i, i + 1], params)) for i in range(5)]
    for _ in range(5):
        engine.step()
    assert sum(s.n_drafted > 0 for s in requests) == 2
    while not engine.is_idle:
        engine.step()
    assert [tuple(s.output) for s in requests] == [llm.generate(list(s.prompt), params).token_ids for s in requests]


def test_shifted_context_is_drafted_too(llm):
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True, context_shift=True, n_keep=3)
    plain, _ = run(llm, params, None, ctx=64)
    for draft in (PromptLookupProposer(), DraftModelProposer(llm.engine.program, 512, 256)):
        guessed, _ = run(llm, params, draft, ctx=64)
        assert guessed.n_shifts == plain.n_shifts > 1
        assert guessed.output == plain.output


def test_lookup_proposes_the_last_continuation_of_the_same_tokens():
    lookup = PromptLookupProposer(max_ngram=3, min_ngram=2)

    asked = Mock(n_shifts=0, context=[1, 2, 3, 50, 51, 9, 2, 3, 60, 61, 62, 9, 1, 2, 3])
    assert lookup.propose([(asked, 2)]) == [[50, 51]]  # the longer run wins,
    asked.context += [70, 2, 3]
    assert lookup.propose([(asked, 2)]) == [[70, 2]]  # then the later one
    asked.context += [99]
    assert lookup.propose([(asked, 2)]) == [[]]


def test_drafts_get_longer_while_accepted_and_nearly_stop_otherwise():
    length = DraftLength(8)
    for _ in range(20):
        n = length.next()
        length.observe(n, n)
    assert length.next() == 8
    for _ in range(20):
        length.observe(length.next() or 1, 0)
    assert sum(length.next() for _ in range(160)) <= 10


def test_drafts_that_cost_more_than_they_save_are_stopped():
    cost, length = DraftCost(), DraftLength(8)
    assert cost.share(1) == 0.0 and cost.is_due(
        1
    )  # the first step has no guesses, so that those of the second are known
    cost.stepped(1, 0, 0.010)
    assert not cost.is_due(1) and cost.share(1) == 0.0  # what a row costs is not known
    for _ in range(4):
        n = length.next()
        cost.guessed(n, 0.010 * n)  # as long as a step
        length.observe(n, n)
    assert n > 0
    for cold in (5.0, 1.0, 1.0):  # the first draft of a process waits for weights and threads
        assert cost.share(1) == 0.0
        cost.stepped(1, 8, 0.010 + 0.008 * cold)
    assert cost.share(1) == pytest.approx(1.1) and cost.share(2) == 0.0
    assert sum(length.next(cost.share(1)) for _ in range(100)) <= 3
    cheap = DraftCost()
    cheap.stepped(1, 0, 0.010)
    for _ in range(3):
        cheap.guessed(8, 0.0)
        cheap.stepped(1, 8, 0.012)
    assert cheap.share(1) == pytest.approx(0.025) and length.next(cheap.share(1)) == 8


def test_always_wrong_draft_is_retried_ever_less_often():
    length, n_tried = DraftLength(8), 0
    for _ in range(1000):
        n = length.next()
        n_tried += n > 0
        if n:
            length.observe(n, 0)
    assert n_tried <= 12
    length.observe(1, 1)
    assert length._pause == DraftLength.RETRY


def test_correct_but_costly_draft_is_retried_ever_less_often_until_it_pays():
    length, tried = DraftLength(8), []
    for step in range(1000):
        if n := length.next(1.1):
            tried.append(step)
            length.observe(n, n)
    assert [b - a for a, b in pairwise([-1, *tried])] == [16, 32, 64, 128, 256, 256]
    assert length.next(0.1) > 1
    assert [length.next(1.1) for _ in range(16)] == [0] * 15 + [1]


@pytest.mark.parametrize("seconds", [0.001, 0.020])
def test_draft_cost_decides_their_number_and_no_token(llm, monkeypatch, seconds):
    """A step takes 10 ms of a clock that goes only there and with guesses."""
    params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    plain, n_plain = run(llm, params, None)
    now = [0.0]

    class Slow(Oracle):
        def propose(self, wanted):
            out = super().propose(wanted)
            now[0] += seconds * sum(map(len, out))
            return out

    def ran(self, work, ran=Speculation.ran):
        work.seconds = 0.010
        ran(self, work)

    monkeypatch.setattr("woolly.engine.drafts.speculation.DraftCost", DraftCost)
    monkeypatch.setattr("woolly.engine.drafts.speculation.SpeculationBudget", SpeculationBudget)
    monkeypatch.setattr("woolly.engine.drafts.speculation.time", Mock(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Speculation, "ran", ran)
    guessed, n_guessed = run(llm, params, Slow(plain.output))
    assert guessed.output == plain.output and guessed.text == plain.text
    assert guessed.n_accepted == guessed.n_drafted
    if seconds < 0.010:
        assert n_guessed < n_plain * 0.4
    else:
        assert 0 < guessed.n_drafted < 40 and n_guessed > n_plain * 0.7
        assert guessed.n_draft_pauses > 80
        assert guessed.draft_pause == "a guessed token was measured to cost 2.0 steps"
        note = f"paused for {guessed.n_draft_pauses} tokens: {guessed.draft_pause}"
        assert Completion.of([guessed]).draft_note == note


class FixedBudget:
    """A budget that lets a draft model prefill a fixed number of tokens."""

    def __init__(self, n):
        self.n, self.n_prefilled = n, 0

    def max_prefill_tokens(self, request):
        return self.n

    def spend_prefill(self, request, n_tokens, seconds):
        self.n_prefilled += n_tokens


def test_draft_model_prefills_within_its_budget_and_reuses_cached_pages(llm):
    program = llm.engine.program
    engine = Engine(program, llm.tokenizer, ctx=256)
    context = [(7 * i) % 256 for i in range(200)]
    wanted = llm.generate(context, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)).token_ids

    def asked():
        return engine.new_request(context, SamplingParams(temperature=0, max_tokens=30))

    draft, request, other = DraftModelProposer(program, 512, 256), asked(), asked()
    draft.budget = allowed = FixedBudget(8)
    assert draft.propose([(request, 3)]) == [[]] and allowed.n_prefilled == 0  # too little to guess from
    allowed.n = 40
    assert len(draft.propose([(request, 3)])[0]) == 3 and allowed.n_prefilled == 44
    assert draft._tracks[request].tokens[:44] == context[:4] + context[-40:]
    request.context += [1, 2]
    assert len(draft.propose([(request, 3)])[0]) == 3 and allowed.n_prefilled == 44  # what is new is a guess's own cost
    del request.context[-2:]
    allowed.n = 200
    assert draft.propose([(request, 3)]) == [list(wanted)] and allowed.n_prefilled == 244
    request.context += range(42)
    allowed.n = 40  # a shortened context would cost 44
    assert len(draft.propose([(request, 3)])[0]) == 3 and allowed.n_prefilled == 286
    assert draft._tracks[request].n_skipped == 0
    draft.forget(request)
    allowed.n, allowed.n_prefilled = 200, 244
    assert draft.propose([(other, 3)]) == [list(wanted)] and allowed.n_prefilled == 244  # six pages, and eight tokens
    draft.forget(other)
    assert draft._pages.n_free == draft._pages.n_pages


def test_random_speculation_budgets_change_no_text_and_leak_no_page(llm, monkeypatch):
    draw = random.Random(7)

    class RandomBudget(SpeculationBudget):
        def may_draft(self, request):
            return draw.random() < 0.7

        def max_prefill_tokens(self, request):
            return draw.choice((0, 15, 16, 24, 48, 1 << 30))

    monkeypatch.setattr("woolly.engine.drafts.speculation.SpeculationBudget", RandomBudget)
    prompts = [[(5 * i + j) % 250 for j in range(30 + 20 * i)] for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True, context_shift=True, n_keep=3)

    def answers(draft):
        engine = Engine(llm.engine.program, llm.tokenizer, ctx=128, kv_tokens=288, chunk=32, draft=draft)
        requests = [engine.add(engine.new_request(one, params)) for one in prompts]
        while not engine.is_idle:
            engine.step()
        assert engine.scheduler.pages.n_free == engine.scheduler.pages.n_pages
        return requests

    draft = DraftModelProposer(llm.engine.program, 192, 128)
    guessed = answers(draft)
    assert [one.output for one in guessed] == [one.output for one in answers(None)]
    assert sum(one.n_shifts for one in guessed) > 1
    assert sum(one.n_drafted for one in guessed) > sum(one.n_accepted for one in guessed) > 0
    assert not draft._tracks and draft._pages.n_free == draft._pages.n_pages


def test_speculation_is_selected_by_name_file_or_llm(llm, folder):
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    wanted = llm.generate(prompt(), params).token_ids
    for speculation in ("prompt_lookup", folder / "tiny.gguf", llm):
        with LLM(folder / "tiny.gguf", ctx=256, speculation=speculation, draft_tokens=3) as fast:
            assert fast.generate(prompt(), params).token_ids == wanted


def test_draft_with_another_vocabulary_is_rejected(llm, folder):
    with pytest.raises(RequestError, match="draft_tokens is 0"):
        LLM(folder / "tiny.gguf", speculation="prompt_lookup", draft_tokens=0)

    class Other:
        n_vocab = 320

        def token_text(self, token):
            return "x" if token == 300 else llm.tokenizer.token_text(token)

    with pytest.raises(RequestError, match="token 300 is 'x' in the draft model"):
        check_vocabulary(Other(), llm.tokenizer)
    Other.n_vocab = 5
    with pytest.raises(RequestError, match="the draft model has 5 tokens but the model has 320"):
        check_vocabulary(Other(), llm.tokenizer)


def test_draft_llm_shares_no_program_and_may_be_closed(llm, folder):
    """The logits of a run are a view: two engines over one program would overwrite each other's."""
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    wanted = llm.generate(prompt(), params).token_ids
    with LLM(folder / "tiny.gguf", ctx=256) as small:
        fast = LLM(folder / "tiny.gguf", ctx=256, speculation=small)
        assert fast.engine.draft._program is not small.engine.program
    with fast:
        assert fast.generate(prompt(), params).token_ids == wanted
    with pytest.raises(RequestError, match="was closed"):
        LLM(folder / "tiny.gguf", ctx=256, speculation=small)


def test_draft_context_is_the_shorter_of_both_models(folder):
    path = write_tiny(TINY["llama"], folder / "tiny.gguf")
    short = write_tiny(replace(TINY["llama"], context=128), folder / "short.gguf")
    for draft, ctx in ((path, 256), (short, 128)):
        with LLM(path, ctx=256, speculation=draft) as fast:
            assert fast.engine.draft._ctx == ctx
