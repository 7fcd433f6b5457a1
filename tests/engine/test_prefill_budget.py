"""Prefill budget: prompts get the rows that fit the target inter-token latency, and images are not split."""

import pytest

from woolly import SamplingParams
from woolly.engine import Engine, RequestOptions
from woolly.engine.step.prefill_budget import PrefillBudget
from woolly.engine.step.scheduler_output import SchedulerOutput


class FakeSpan:
    def __init__(self, n_tokens):
        self.n_tokens = n_tokens


def ran(budget, seconds, *rows):
    scheduled = SchedulerOutput([FakeSpan(n) for n in rows])
    scheduled.seconds = seconds
    budget.ran(scheduled)


def simulate(budget, cost, steps=12):
    """Return the rows and seconds of the last of several steps; `cost` is the duration by rows."""
    for _ in range(steps):
        n = budget.n_rows(512)
        ran(budget, cost(n), n, 1)
    return n, cost(n)


def test_no_target_gives_all_rows():
    assert PrefillBudget(None).n_rows(512) == 512


def test_first_step_is_small_and_later_ones_follow_the_measured_rate():
    budget = PrefillBudget(0.25)
    assert budget.n_rows(512) == 64
    ran(budget, 2.0, 512)
    assert budget.n_rows(512) == 64
    ran(budget, 0.1, 512)
    assert budget.n_rows(512) == 512


@pytest.mark.parametrize("fixed", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("each", [0.0005, 0.002, 0.004])
def test_steps_converge_to_the_target(fixed, each):
    n, seconds = simulate(PrefillBudget(0.25), lambda n: fixed + each * n)
    assert seconds <= 0.25 + 1e-9
    assert seconds + 32 * each > 0.25 or n == 512  # at most two blocks of rows below the target


def test_rows_follow_the_rising_cost_of_a_long_context():
    budget, context = PrefillBudget(0.25), 0
    for _ in range(200):
        n = budget.n_rows(512)
        seconds = 0.02 + n * (0.0005 + context * 2e-7)
        assert seconds < 0.3
        ran(budget, seconds, n, 1)
        context += n
    assert context > 10_000


def test_slow_decoding_leaves_prompts_as_much_time_as_answers():
    budget = PrefillBudget(0.25)
    ran(budget, 0.4, 1, 1)
    _, seconds = simulate(budget, lambda n: 0.4 + 0.005 * n)
    assert 0.6 < seconds <= 0.8


@pytest.mark.parametrize(("fixed", "each"), [(0.2, 0.001), (0.13, 0.001), (0.03, 0.0001)])
def test_short_end_of_a_prompt_does_not_keep_later_steps_small(fixed, each):
    budget = PrefillBudget(0.25)
    ran(budget, fixed, 1)
    for n in (512, 9):
        ran(budget, fixed + each * n, n, 1)
    n, seconds = simulate(budget, lambda n: fixed + each * n, 30)
    assert n > 64 and seconds <= max(0.25, 2 * fixed) + 16 * each


def test_steps_grow_without_a_measurement_of_decoding():
    budget = PrefillBudget(0.25)
    ran(budget, 0.139, 9, 1)
    n, seconds = simulate(budget, lambda n: 0.13 + 0.001 * n, 30)
    assert n >= 64 and seconds <= 0.25


def test_a_prompt_always_advances():
    n, _ = simulate(PrefillBudget(0.25), lambda n: 10.0)
    assert n == 16


@pytest.fixture
def engine(tiny_llm):
    return Engine(tiny_llm.engine.program, tiny_llm.tokenizer, ctx=512, kv_tokens=2048, chunk=64, itl_target=0.25)


def add(engine, n, n_answer):
    params = SamplingParams(temperature=0, max_tokens=n_answer, ignore_eos=True)
    return engine.add(engine.new_request([1 + i % 200 for i in range(n)], params, RequestOptions()))


def test_long_prompt_is_limited_only_while_an_answer_runs(engine):
    engine.scheduler.prefill_budget.ran = lambda scheduled: None  # no measurement: 64 rows at first, then by the rate
    engine.scheduler.prefill_budget._rows_per_second = 64.0
    answer = add(engine, 3, 60)
    engine.step()
    long = add(engine, 300, 1)
    engine.step()
    assert long.n_computed == 16 and len(answer.output) == 2
    engine.cancel(answer)
    before = long.n_computed
    engine.step()
    assert long.n_computed - before == 64
    engine.cancel(long)
