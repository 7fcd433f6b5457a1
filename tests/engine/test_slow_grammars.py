"""A grammar whose masks are slow fails its own request, and the others go on meanwhile."""

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, SamplingParams
from woolly.engine import Engine, RequestOptions
from woolly.errors import RequestError
from woolly.grammar import GrammarCompiler
from woolly.grammar.constraint import Allowance, Constraint

CONSTRAINED = SamplingParams(temperature=0, max_tokens=200, regex="[a-z]{1,300}", n=16)
FREE = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


class Clock:
    """The time as constraints and steps read it: it passes only in slow matchers."""

    now = 0.0

    def read(self):
        return self.now

    thread_time = monotonic = read


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("woolly.grammar.constraint.time", clock)
    monkeypatch.setattr("woolly.engine.step.deferred_rows.time", clock)
    return clock


class SlowMatcher:
    """Allows every token, after some time."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def unsafe_compute_mask_ptr(self, pointer, n_bytes):
        self.clock.now += self.seconds

    def is_error(self):
        return False

    def is_stopped(self):
        return False

    def consume_token(self, token):
        return True


@pytest.fixture
def llm(tmp_path):
    with LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"), ctx=256) as model:
        yield model


def test_always_slow_constraint_fails_with_a_code(clock):
    constraint = Constraint(SlowMatcher(clock, 0.2), 1, 32, Allowance())
    with pytest.raises(RequestError, match="takes too long") as caught:
        for _ in range(5):
            constraint.words()
            constraint.accept(1)
    assert caught.value.code == "grammar_too_slow"


def test_sometimes_slow_constraint_continues(clock):
    matcher = SlowMatcher(clock, 0.0)
    constraint = Constraint(matcher, 1, 32, Allowance())
    for i in range(200):
        matcher.seconds = 0.1 if i % 50 == 0 else 0.0
        constraint.words()
        constraint.accept(1)


def test_slow_grammars_fail_and_the_others_finish(llm, clock):
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=256, kv_tokens=4096)
    slow = [engine.add(engine.new_request([5], CONSTRAINED, RequestOptions(index=i))) for i in range(6)]
    n_vocab = engine.program.plan.width
    for request in slow:
        constraint = Constraint(SlowMatcher(clock, 0.2), (n_vocab + 31) // 32, n_vocab, Allowance())
        constraint._words[:] = 0xFFFFFFFF
        request.sampler.constraint = constraint
    engine.step()
    free = engine.add(engine.new_request([7], FREE))
    quick = engine.add(engine.new_request([7], SamplingParams(temperature=0, regex="[a-z]{5}")))
    n_steps = 0
    while free.finish_reason is None:
        begin = clock.now
        engine.step()
        n_steps += 1
        assert clock.now - begin < 0.3  # one slow mask, not six
    assert n_steps == FREE.max_tokens
    assert tuple(free.output) == llm.generate([7], FREE).token_ids
    while not engine.is_idle:
        engine.step()
    assert {request.error.code for request in slow} == {"grammar_too_slow"}
    assert (quick.finish_reason, len(quick.text)) == ("stop", 5)


def test_cancelled_request_gets_no_mask(llm):
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=256)
    request = engine.add(engine.new_request([5], CONSTRAINED))
    request.is_unwanted = True
    other = engine.add(engine.new_request([7], FREE))
    engine.step()
    assert (len(request.output), len(other.output)) == (0, 1)
    engine.cancel(request)
    assert request.finish_reason == "cancelled"
    while not engine.is_idle:
        engine.step()
    assert other.finish_reason == "length"


def test_answers_of_one_request_share_their_time_limit(llm, clock):
    compiler = GrammarCompiler(llm.tokenizer)
    grammar = compiler.compile("regex", "[a-z]{1,300}")
    first = grammar.start()
    second, foreign = grammar.start(first), grammar.start()
    first._matcher = SlowMatcher(clock, 1.0)
    for constraint in (first, second):
        with pytest.raises(RequestError) as caught:
            constraint.words()
        assert caught.value.code == "grammar_too_slow"
    foreign.words()  # another request with the same grammar has an allowance of its own
    one, other = (llm.prepare([5], CONSTRAINED)[0] for _ in range(2))
    assert len({id(request.sampler.constraint.allowance) for request in one}) == 1 < len(one)
    assert one[0].sampler.constraint.allowance is not other[0].sampler.constraint.allowance
