"""Speculation with recurrent state: rejected drafts spoil no state, and the text is the same."""

import numpy as np
import pytest

from tests.cases.hybrid import HybridProgram
from tests.engine.test_snapshots import add, ask, assert_whole, engine_of, finish, ids, params, parts
from tests.engine.test_speculation import Oracle
from woolly.engine import DraftModelProposer, Engine, PromptLookupProposer

__all__ = ["engine_of", "parts"]  # fixtures


def drafts_of(plan, answer):
    program = HybridProgram(plan)
    return {
        "right": Oracle(answer),
        "wrong at once": Oracle(answer, wrong=range(200)),
        "wrong at times": Oracle(answer, wrong=range(5, 200, 6)),
        "lookup": PromptLookupProposer(),
        "itself": DraftModelProposer(program, 1024, 512),
    }


@pytest.mark.parametrize("chunk", [1, 5, 32, 512])
@pytest.mark.parametrize("kind", ["right", "wrong at once", "wrong at times", "lookup", "itself"])
def test_text_is_the_same_with_and_without_drafts(engine_of, parts, kind, chunk):
    prompt = [7, 8, 9] * 20
    plain = ask(engine_of(), prompt, 120)
    engine = engine_of(chunk=chunk, draft=drafts_of(parts[0], plain.output)[kind], draft_tokens=5)
    request = ask(engine, prompt, 120)
    assert request.output == plain.output
    if chunk > 5 and kind in ("right", "itself"):
        assert request.n_accepted == request.n_drafted > 80
        assert engine.program.n_runs < 40
    # The next turn finds the answer's last full page, whatever the drafts jumped over.
    again = ask(engine, [*prompt, *request.output, 3], 1)
    assert again.prefix.hit_tokens == 160


def test_rejected_drafts_cost_rows_and_no_steps(engine_of):
    plain = ask(engine_of(), ids(40), 100)
    engine = engine_of(draft=Oracle(plain.output, wrong=range(0, 100, 4)), draft_tokens=5)
    assert ask(engine, ids(40), 100).output == plain.output
    assert engine.program.n_runs < 80
    assert engine.program.n_rows < 40 + 5 * 100


def test_many_requests_with_drafts_in_a_small_chunk_all_finish(engine_of, parts, monkeypatch):
    monkeypatch.setattr("woolly.engine.step.deferred_rows.GRAMMAR_SECONDS", 0.0)
    engine = engine_of(ctx=192, kv_tokens=192, chunk=16, max_running=6, n_snapshots=4, draft_tokens=5)
    engine._speculation.draft = DraftModelProposer(HybridProgram(parts[0]), 768, 192, 6)
    wide = engine_of()
    random = np.random.RandomState(3)
    prompts = [ids(100, 9)[: random.randint(1, 100)] + ids(random.randint(1, 30), seed) for seed in range(24)]
    grammars = [{}, {"regex": "[a-f]{30,40}", "ignore_eos": False}]
    requests = []
    for i, prompt in enumerate(prompts):
        requests.append(engine.add(engine.new_request(prompt, params(50, **grammars[i % 2]))))
        engine.step()
    engine.cancel(requests[3])
    finish(engine)
    assert engine.scheduler.n_preemptions > 0
    assert sum(request.n_accepted for request in requests) > 0
    for i, request in enumerate(requests):
        if i != 3:
            alone = wide.add(wide.new_request(prompts[i], params(50, **grammars[i % 2])))
            finish(wide)
            assert request.output == alone.output
    assert_whole(engine)
    draft = engine.draft
    assert (draft._slots.n_free, draft._pages.n_free) == (draft._slots.n_slots, draft._pages.n_pages)


def test_recurrent_draft_serves_a_model_without_state(tiny_llm, parts):
    plain = tiny_llm.generate(ids(40), params(60)).token_ids
    draft = DraftModelProposer(HybridProgram(parts[0]), 512, 256)
    engine = Engine(tiny_llm.engine.program, tiny_llm.tokenizer, ctx=256, chunk=16, draft=draft)
    request = add(engine, ids(40), 60)
    finish(engine)
    assert tuple(request.output) == plain
    assert draft._slots.n_free == draft._slots.n_slots
