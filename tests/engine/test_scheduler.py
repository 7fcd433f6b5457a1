"""Scheduling: no starvation, short requests overtake long ones, and a full cache preempts the latest."""

import time

import numpy as np
import pytest

from woolly import RequestError, SamplingParams
from woolly.engine import Engine, RequestOptions
from woolly.engine.step.adaptive_batch_size import AdaptiveBatchSize
from woolly.engine.step.scheduler_output import Span


def params(n=12, **others):
    return SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, **others)


@pytest.fixture
def engine_of(tiny_llm):
    """Engines over one program; at the end of a test none may have lost a page."""
    made = []

    def make(**options):
        made.append(Engine(tiny_llm.engine.program, tiny_llm.tokenizer, **{"ctx": 512, **options}))
        return made[-1]

    yield make
    for engine in made:
        for request in engine.scheduler.requests:
            engine.cancel(request)
        pool = engine.scheduler.pages
        assert pool.n_free == pool.n_pages
        assert not engine.scheduler.running and not engine.scheduler.waiting


def ids(n, seed=0):
    return np.random.RandomState(seed).randint(0, 256, n).tolist()


def add(engine, n, seed=0, n_answer=12, **options):
    return engine.add(engine.new_request(ids(n, seed), params(n_answer), RequestOptions(**options)))


def finish(engine):
    for _ in range(5000):
        if engine.is_idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def test_answers_get_a_token_in_every_step_during_a_long_prefill(engine_of):
    engine = engine_of(chunk=16, kv_tokens=2048)
    answering = [add(engine, 3, seed, 200) for seed in range(4)]
    while not all(s.output for s in answering):
        engine.step()
    long = add(engine, 300, 9)
    while not long.output:
        before = [len(s.output) for s in answering]
        engine.step()
        assert [len(s.output) for s in answering] == [n + 1 for n in before]


def test_short_prompt_passes_a_long_one_in_one_step(engine_of):
    engine = engine_of(chunk=64, kv_tokens=2048)
    long = add(engine, 500, 1)
    engine.step()
    short = add(engine, 20, 2)
    before = long.n_computed
    engine.step()
    assert short.output
    # The first keeps half of the chunk, and the step is not made longer than the short one needs.
    assert long.n_computed - before == 32


def test_many_short_prompts_do_not_starve_a_long_one(engine_of):
    engine = engine_of(chunk=32, kv_tokens=4096, max_running=6)
    long = add(engine, 400, 1, 1)
    for step in range(400 // 16):
        add(engine, 30, step + 2, 1)
        add(engine, 30, step + 200, 1)
        engine.step()
    assert long.output


def many(engine, n, n_answer=100, **options):
    """The n answers to one prompt."""
    first = add(engine, 40, 1, n_answer, **options)
    return [first, *(add(engine, 40, 1, n_answer, beside=first, **options) for _ in range(n - 1))]


def test_many_answers_to_one_prompt_do_not_delay_another_client(tiny_llm, engine_of):
    engine = engine_of(kv_tokens=8192, max_running=4)
    answers = many(engine, 16)
    for _ in range(10):
        engine.step()
    assert len(engine.scheduler.running) == 4
    other = add(engine, 40, 2)
    engine.step()
    assert len(other.output) == 1  # one of the four places is taken from the group that has them all
    finish(engine)
    alone = tiny_llm.generate(ids(40, 1), params(100)).token_ids
    assert {tuple(answer.output) for answer in answers} == {alone}
    assert sum(answer.n_preemptions for answer in answers) == 1


def test_chat_takes_one_slot_of_a_batch_with_more_than_may_begin(engine_of):
    engine = engine_of(chunk=128, kv_tokens=8192, max_running=64)
    ahead = 10.0  # seconds that all requests seem to have waited
    engine.scheduler.batch_size = AdaptiveBatchSize(16, 64, lambda: time.monotonic() + ahead)
    first = add(engine, 5, 0)
    rows = [first, *(add(engine, 5, seed, beside=first) for seed in range(1, 64))]
    engine.scheduler.schedule()
    assert len(engine.scheduler.running) == 64
    ahead = -10.0
    chat = add(engine, 5, 64)
    engine.scheduler.schedule()
    assert chat in engine.scheduler.running and len(engine.scheduler.running) == 64
    assert sum(row.n_preemptions for row in rows) == 1


def test_background_work_does_not_raise_the_batch_size(engine_of):
    engine = engine_of(chunk=128, kv_tokens=8192, max_running=64)
    engine.scheduler.batch_size = AdaptiveBatchSize(4, 64, lambda: time.monotonic() + 10.0)  # all are late
    rows = [add(engine, 5, seed, priority=-1) for seed in range(6)]
    engine.scheduler.schedule()
    assert engine.scheduler.running == rows[:4]
    engine.cancel(rows[4])
    engine.cancel(rows[5])
    answer, other = add(engine, 5, 6), add(engine, 5, 7)
    engine.scheduler.schedule()
    assert engine.scheduler.running == [answer, other, *rows[:4]]  # who waits for an answer gets a place
    engine.scheduler.restart(answer)
    engine.scheduler.schedule()
    assert answer not in engine.scheduler.running


def test_waiting_groups_are_scheduled_round_robin(engine_of):
    engine = engine_of(kv_tokens=8192, max_running=4)
    add(engine, 5, 9, 20)
    a, b = many(engine, 8), many(engine, 8)
    alone = add(engine, 5, 7)
    for _ in range(4):
        engine.step()
    groups = [request.group for request in engine.scheduler.running]
    assert {a[0].group, b[0].group, alone.group} < set(groups)
    # A group gives a place away, but not its last one, and not to a lower priority.
    low = add(engine, 5, 8, priority=-1)
    engine.step()
    assert not low.output
    finish(engine)
    assert all(request.finish_reason == "length" for request in (*a, *b, alone, low))


def test_many_answers_give_up_pages_for_another_client(engine_of):
    engine = engine_of(ctx=256, kv_tokens=512)
    answers = many(engine, 4, 200)
    while not answers[-1].output:
        engine.step()
    other = add(engine, 230, 2, 20)
    engine.step()
    engine.step()
    assert other.pages
    finish(engine)
    assert {len(answer.output) for answer in answers} == {200}


def test_equal_prompts_are_finished_one_after_the_other(engine_of):
    engine = engine_of(chunk=64, kv_tokens=2048)
    first, second = add(engine, 200, 1), add(engine, 200, 2)
    while not first.output:
        engine.step()
    assert second.n_computed <= 64


def test_higher_priority_goes_first_regardless_of_arrival(engine_of):
    engine = engine_of(max_running=1)
    add(engine, 5, 0)
    engine.step()
    low, high = add(engine, 5, 1), add(engine, 5, 2, priority=5)
    while not high.finish_reason:
        engine.step()
        assert not low.output
    finish(engine)
    assert low.finish_reason == "length"


def test_full_cache_preempts_the_latest_and_lowest_and_nobody_fails(tiny_llm, engine_of):
    engine = engine_of(ctx=128, kv_tokens=160)
    urgent = add(engine, 40, 1, 80, priority=1)
    early, late = add(engine, 40, 2, 80), add(engine, 20, 3, 80)
    finish(engine)
    assert late.n_preemptions > 0
    assert urgent.n_preemptions == 0
    for request in (urgent, early, late):
        alone = tiny_llm.generate(list(request.prompt), params(80))
        assert tuple(request.output) == alone.token_ids
        assert request.finish_reason == "length"


def test_preemption_by_logits_changes_no_result(tiny_llm, engine_of):
    engine = engine_of(ctx=128, kv_tokens=160)
    requests = [add(engine, 40, seed, 60) for seed in range(2)]
    for _ in range(10):
        engine.step()
    np.testing.assert_array_equal(engine.logits(ids(128)), tiny_llm.logits(ids(128)))
    assert [s.n_preemptions for s in requests] == [1, 1]
    finish(engine)
    for request in requests:
        assert tuple(request.output) == tiny_llm.generate(list(request.prompt), params(60)).token_ids


def test_hooks_read_a_token_once_even_if_it_is_recomputed(tiny_llm, engine_of):
    engine = engine_of(ctx=128, kv_tokens=128)
    add(engine, 40, 1, 80)
    seen = []
    hooks = {"blk.1": lambda positions, values: seen.append((positions.copy(), values))}
    hooked = add(engine, 20, 2, 80, hooks=hooks)
    finish(engine)
    assert hooked.n_preemptions > 0
    np.testing.assert_array_equal(np.concatenate([p for p, _ in seen]), np.arange(99))
    everything = [*hooked.prompt, *hooked.output][:99]
    np.testing.assert_array_equal(np.concatenate([v for _, v in seen]), tiny_llm.hidden(everything, "blk.1"))


def test_request_that_fits_alone_is_served_in_any_cache(engine_of):
    engine = engine_of(ctx=96, kv_tokens=96, chunk=8)
    requests = [add(engine, 60, seed, 36) for seed in range(8)]
    finish(engine)
    assert [len(s.output) for s in requests] == [36] * 8


def test_pages_are_allocated_on_demand(engine_of):
    engine = engine_of()
    request = add(engine, 5, 1, 200)
    engine.step()
    assert len(request.pages) == 1
    while request.n_computed < 33:
        engine.step()
    assert len(request.pages) == 2


def test_missed_deadline_ends_a_request_at_the_next_step_with_its_partial_answer(engine_of, monkeypatch):
    engine = engine_of()
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    request = add(engine, 5, 1, 200, timeout=3)
    waiting = engine_of(max_running=1)
    engine.step()
    clock[0] = 102.9
    engine.step()
    assert request.finish_reason is None
    clock[0] = 103.0
    assert request in engine.step()
    assert (request.finish_reason, request.stop_reason) == ("cancelled", "timeout")
    assert len(request.output) == 2
    # One that never got to run is ended too.
    add(waiting, 5, 1, 200)
    late = add(waiting, 5, 2, 200, timeout=1)
    waiting.step()
    clock[0] = 105.0
    waiting.step()
    assert (late.finish_reason, late.output) == ("cancelled", [])


def test_cancelling_takes_effect_before_the_next_step(engine_of):
    engine = engine_of()
    request, other = add(engine, 40, 1), add(engine, 40, 2)
    engine.step()
    engine.cancel(request)
    assert request.finish_reason == "cancelled"
    assert request.pages == []
    assert engine.step() == [other]
    engine.cancel(request)
    assert len(request.output) == 1


def test_callback_may_cancel_its_own_request(engine_of):
    engine = engine_of()
    request = engine.new_request(ids(5), params(20, logits_processors=(lambda *_: engine.cancel(request),)))
    engine.add(request)
    engine.step()
    assert request.finish_reason == "cancelled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0; expected a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
        ({"priority": 1.5}, "priority is 1.5; expected an integer"),
        ({"hooks": {"blk.0": 3}}, "the hook at 'blk.0' is 3; expected a callable"),
        ({"hooks": {"output": print}}, "after the last layer"),
    ],
)
def test_options_out_of_range_are_rejected_by_name(engine_of, options, message):
    with pytest.raises(RequestError, match=message):
        engine_of().new_request([1], params(), RequestOptions(**options))


def test_cache_smaller_than_one_context_is_rejected(engine_of):
    with pytest.raises(RequestError, match="kv_tokens is 100; expected at least ctx, 512"):
        engine_of(kv_tokens=100)


def test_shifted_context_keeps_its_head_and_equals_a_fresh_prompt(tiny_llm, engine_of):
    engine = engine_of(ctx=64)
    asked = params(100, context_shift=True, n_keep=5)
    request = engine.add(engine.new_request(ids(20), asked))
    seen = []
    while not engine.is_idle:
        engine.step()
        if request.n_shifts == 1 and not seen:
            seen = [list(request.context), len(request.output)]
    assert len(request.output) == 100
    assert request.n_shifts > 1
    context, n_output = seen
    everything = [*request.prompt, *request.output]
    assert context == everything[:5] + everything[5 + 29 : 64]
    # From there on it goes as a request does whose prompt is what was left.
    again = tiny_llm.generate(context, params(64 - len(context)))
    assert tuple(request.output[n_output : n_output + len(again.token_ids)]) == again.token_ids


def test_full_context_ends_an_answer_without_shift(engine_of):
    engine = engine_of(ctx=64)
    request = engine.add(engine.new_request(ids(20), params(None)))
    finish(engine)
    assert (request.finish_reason, len(request.output)) == ("length", 44)


def test_shift_that_could_drop_nothing_is_rejected(engine_of):
    with pytest.raises(RequestError, match="n_keep is 63; expected at most 62 for context_shift with ctx 64"):
        engine_of(ctx=64).new_request(ids(63), params(9, context_shift=True, n_keep=-1))


def test_logits_are_requested_only_for_rows_to_sample(engine_of):
    engine = engine_of()
    request = engine.new_request(ids(20), params())
    assert Span(request, 19).n_outputs == 0
    assert Span(request, 20).n_outputs == 1
    assert Span(request, 20, [1, 2]).n_outputs == 3
    scored = engine.new_request(ids(20), params(prompt_logprobs=0))
    assert Span(scored, 7).n_outputs == 7


def test_request_waiting_for_pages_of_another_is_not_looked_up_in_every_step(engine_of, monkeypatch):
    engine = engine_of(chunk=16, kv_tokens=2048)
    first = add(engine, 320)
    engine.step()
    others = [add(engine, 320) for _ in range(5)]
    index, looked_up = engine.scheduler.pages.index, []
    find = index.find
    monkeypatch.setattr(index, "find", lambda digests: looked_up.append(1) or find(digests))
    while not first.output:
        engine.step()
    assert len(looked_up) <= 2 * len(others)  # when it came, and when the last page it shares was there
    finish(engine)
    assert {tuple(s.output) for s in others} == {tuple(first.output)}
    assert all(s.prefix.hit_tokens == 288 for s in others)


def test_waiters_continue_when_the_request_they_wait_for_is_cancelled(engine_of):
    engine = engine_of(chunk=16, kv_tokens=2048)
    first = add(engine, 320)
    engine.step()
    others = [add(engine, 320) for _ in range(2)]
    engine.step()
    engine.cancel(first)
    finish(engine)
    assert [s.finish_reason for s in others] == ["length"] * 2
