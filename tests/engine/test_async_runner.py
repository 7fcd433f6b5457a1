"""A device that goes on with the next step by itself changes no answer, whatever comes between."""

import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest

from tests.cases.async_program import AsyncProgram
from tests.cases.heads import Ranking256
from tests.cases.tiny import TINY, write_tiny
from woolly import SamplingParams
from woolly.engine import Engine, PromptLookupProposer, RequestOptions
from woolly.engine.pooling import PoolingJob
from woolly.engine.pooling.make_pooler import make_pooler
from woolly.engine.step.async_runner import AsyncRunner
from woolly.engine.step.runner import Runner
from woolly.engine.threads.driver import EngineDriver
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import CancelledRun, Options
from woolly.runtime.cpu import CpuBackend
from woolly.tokens import Tokenizer

CTX = 96
GUESSES = {"right": lambda i: False, "mostly": lambda i: i % 5 == 3, "wrong": lambda i: True}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("program") / "tiny.gguf")) as file:
        yield file


@pytest.fixture(scope="module")
def cpu(file):
    return CpuBackend().compile(trace(file), file.tensors, Options(threads=1))


@pytest.fixture
def new_engine(file):
    engines = []

    def new(program, kv_tokens=8 * CTX, **options):
        tokenizer = Tokenizer.from_metadata(file.metadata)
        engines.append(Engine(program, tokenizer, ctx=CTX, kv_tokens=kv_tokens, **options))
        return engines[-1]

    yield new
    for engine in engines:
        pool = engine.scheduler.pages
        assert engine.is_idle and pool.n_free == pool.n_pages


def params(i, **more):
    return SamplingParams(
        **{"seed": i, "max_tokens": 20 + 9 * i, "ignore_eos": i % 2 == 0, "temperature": 0.0 if i == 2 else 0.8} | more
    )


def outputs(engine, requests):
    """Run the requests; returns tokens, text and finish reason of each."""
    for request in requests:
        engine.add(request)
    n_steps = 0
    while not engine.is_idle:
        engine.step()
        n_steps += 1
        assert n_steps < 2000
    return [(request.output, request.text, request.finish_reason, request.logprobs) for request in requests]


KINDS = [
    {},
    {"top_k": 5, "min_p": 0.2, "top_p": 0.6},
    {"logprobs": 2},
    {"repeat_penalty": 1.3},
    {"json_object": True, "ignore_eos": False},
    {"stop": ("a", "e")},
    {"logit_bias": {7: -100.0}},
    {"top_k": 0},
    {"context_shift": True, "max_tokens": 150},
]


@pytest.mark.parametrize(
    ("guesses", "more"), [("right", {}), ("wrong", {}), *(("mostly", kind) for kind in KINDS)], ids=str
)
def test_async_answers_equal_synchronous_ones(guesses, more, cpu, new_engine):
    def all_of(program):
        engine = new_engine(program, max_running=3)
        requests = [engine.new_request([3, 4 + i], params(i, **more)) for i in range(5)]
        # Beside one that is of no special kind.
        return outputs(engine, [*requests, engine.new_request([9, 8], params(4, max_tokens=90))])

    program = AsyncProgram(cpu, GUESSES[guesses])
    assert all_of(program) == all_of(Ranking256(cpu))
    assert program.n_taken > 0
    assert guesses == "wrong" or program.n_wanted > 0


def test_only_async_devices_have_an_async_runner(cpu, new_engine):
    assert type(new_engine(cpu).runner) is Runner
    assert type(new_engine(Ranking256(cpu)).runner) is Runner
    assert type(new_engine(AsyncProgram(cpu), draft=PromptLookupProposer()).runner) is Runner
    assert type(new_engine(AsyncProgram(cpu)).runner) is AsyncRunner


def test_step_of_a_synchronous_program_gets_no_async_arguments(cpu, new_engine):
    passed = set()

    def watch(frame, event, _):
        if event == "call":
            passed.add(Path(frame.f_code.co_filename).name)

    def files_of(program):
        engine = new_engine(program)
        engine.add(engine.new_request([5, 6, 7], params(2, max_tokens=4)))
        passed.clear()
        sys.setprofile(watch)
        try:
            while not engine.is_idle:
                engine.step()
        finally:
            sys.setprofile(None)
        return set(passed)

    assert "async_runner.py" not in files_of(cpu) and "runner.py" in files_of(cpu)
    assert Path(AsyncRunner.run.__code__.co_filename).name in files_of(AsyncProgram(cpu))


def test_lone_answer_has_one_run_per_token_plus_those_after_its_end(cpu, new_engine):
    program = AsyncProgram(cpu)
    engine = new_engine(program)
    request = engine.new_request([5, 6, 7], params(2, max_tokens=40))
    outputs(engine, [request])
    assert (
        len(request.output) == program.n_runs == 40 and program.n_wanted == 39
    )  # after the last token nothing can follow


def test_requests_beyond_memory_are_preempted_and_recomputed(cpu, new_engine):
    def all_of(program):
        engine = new_engine(program, kv_tokens=4 * 32, max_running=3)
        found = outputs(engine, [engine.new_request([3, 4 + i] * 12, params(i, max_tokens=60)) for i in range(3)])
        assert engine.scheduler.n_preemptions > 0
        return found

    assert all_of(AsyncProgram(cpu)) == all_of(Ranking256(cpu))


def test_row_that_needs_all_logits_is_recomputed(cpu, new_engine):
    program = AsyncProgram(cpu)
    program.unsound = {1, 2, 9}
    engine = new_engine(program)
    requests = [engine.new_request([3, 4 + i], params(i)) for i in range(3)]
    found = outputs(engine, requests)
    assert any(request.needs_full_logits for request in requests)
    plain = new_engine(Ranking256(cpu))
    assert found == outputs(plain, [plain.new_request([3, 4 + i], params(i)) for i in range(3)])


def test_other_work_between_two_steps_replaces_the_predicted_step(cpu, new_engine):
    program = AsyncProgram(cpu)
    engine = new_engine(program)
    request = engine.add(engine.new_request([5, 6, 7], params(2, max_tokens=12)))
    while not engine.is_idle:
        engine.step()
        engine.logits([1, 2, 3])
    assert program.n_wanted == 0
    plain = new_engine(Ranking256(cpu))
    assert [tuple(request.output)] == [
        tuple(tokens) for tokens, *_ in outputs(plain, [plain.new_request([5, 6, 7], params(2, max_tokens=12))])
    ]


def test_cancelled_request_leaves_the_others_unchanged(cpu, new_engine):
    program = AsyncProgram(cpu)
    engine = new_engine(program)
    gone, kept = (engine.add(engine.new_request([3, 4 + i], params(i, max_tokens=30))) for i in (1, 2))
    for _ in range(5):
        engine.step()
    engine.cancel(gone)
    late = engine.add(engine.new_request([7, 7], params(4, max_tokens=10)))  # may get the pages of the other
    while not engine.is_idle:
        engine.step()
    plain = new_engine(Ranking256(cpu))
    expected = outputs(plain, [plain.new_request([3, 6], params(2, max_tokens=30))])
    expected += outputs(plain, [plain.new_request([7, 7], params(4, max_tokens=10))])
    assert gone.finish_reason == "cancelled" and len(gone.output) < 30
    assert [kept.output, late.output] == [tokens for tokens, *_ in expected]


def test_late_cancel_of_a_predicted_run_only_costs_time(cpu, new_engine):
    class Late(AsyncProgram):
        def rank(self, *arguments, **options):
            ranking = super().rank(*arguments, **options)
            if self.n_wanted in (3, 7):
                self.n_wanted += 1
                self.queued = None
                raise CancelledRun("the computation was cancelled")
            return ranking

    late = Late(cpu)
    engine, plain = new_engine(late), new_engine(Ranking256(cpu))
    found, expected = (outputs(e, [e.new_request([5, 6], params(1))]) for e in (engine, plain))
    assert found == expected and late.n_wanted > 8


def test_deadline_ends_a_request_that_the_device_has_continued(cpu, new_engine):
    engine = new_engine(AsyncProgram(cpu))
    request = engine.add(engine.new_request([5, 6, 7], params(2, max_tokens=60), RequestOptions(timeout=3600)))
    for _ in range(4):
        engine.step()
    request.deadline = 0.0
    engine.step()
    assert request.finish_reason == "cancelled" and request.stop_reason == "timeout" and len(request.output) == 4


def test_new_request_is_computed_after_the_running_step(cpu, new_engine):
    program = AsyncProgram(cpu)
    engine = new_engine(program)
    engine.add(engine.new_request([5, 6, 7], params(2, max_tokens=60)))
    for _ in range(4):
        engine.step()
    late = engine.add(engine.new_request([8, 9], params(4, max_tokens=5)))
    engine.step()
    engine.step()
    assert len(late.output) == 1
    while not engine.is_idle:
        engine.step()


def test_mispredicted_request_continues_next_to_the_others(cpu, new_engine):
    engine = new_engine(AsyncProgram(cpu, lambda i: i == 5))
    requests = [engine.add(engine.new_request([3, 4 + i], params(i, max_tokens=60))) for i in (0, 2)]
    n_behind = 0
    while not engine.is_idle:
        engine.step()
        n_behind = max(n_behind, abs(len(requests[0].output) - len(requests[1].output)))
    assert n_behind == 2  # the step that went wrong, and the one that the device was at by then


def test_prompt_without_room_in_a_step_is_in_the_next(cpu, new_engine):
    engine = new_engine(AsyncProgram(cpu), chunk=8)
    prompts = [3, 4, 5, 6], [7, 8, 9, 3], list(range(3, 33))
    *_, long = [engine.add(engine.new_request(prompt, params(2, max_tokens=40))) for prompt in prompts]
    for _ in range(10):
        engine.step()
    assert long.output
    while not engine.is_idle:
        engine.step()


def test_often_mispredicted_request_is_waited_for(cpu, new_engine):
    program = AsyncProgram(cpu, lambda i: True)
    engine = new_engine(program)
    request = engine.new_request([5, 6, 7], params(2, max_tokens=80))
    outputs(engine, [request])
    # A token that went wrong has two runs in vain: after 1, 10, 27 and 60 tokens.
    assert len(request.output) == 80 and program.n_runs == 80 + 2 * 4 and program.n_wanted == 4


def test_one_wrong_token_among_many_costs_little(cpu, new_engine):
    program = AsyncProgram(cpu, lambda i: i == 70)
    engine = new_engine(program)
    request = engine.new_request([5, 6, 7], params(2, max_tokens=90))
    outputs(engine, [request])
    assert request.async_pause == 4 and program.n_runs == 92


def test_no_step_is_wasted_next_to_embeddings(file, cpu, new_engine):
    program = AsyncProgram(cpu)
    engine = new_engine(program, chunk=8)
    request = engine.add(engine.new_request([5, 6, 7], params(2, max_tokens=12)))
    engine.pooling.add(job := PoolingJob([list(range(3, 11))] * 15, make_pooler(program, file.tensors, "mean")))
    while not engine.is_idle:
        engine.step()
    assert job.n_done == 15 and program.n_runs == 12 and program.n_taken == 0
    assert len(request.output) == 12


def test_readers_of_many_answers_get_all_of_each(file, cpu):
    driver = EngineDriver(Engine(AsyncProgram(cpu), Tokenizer.from_metadata(file.metadata), ctx=CTX, kv_tokens=8 * CTX))
    texts, ended = {}, threading.Semaphore(0)

    def listen(request, chunk):
        texts[request] = texts.get(request, "") + chunk.text
        if chunk.finish_reason is not None:
            ended.release()

    requests = [driver.engine.new_request([3, 4 + i], params(i)) for i in range(5)]
    for request in requests:
        driver.add([request], listen)
    for _ in requests:
        assert ended.acquire(timeout=60)
    assert [texts[request] for request in requests] == [request.text for request in requests]
    driver.close()


def test_unreferenced_engine_frees_its_cache_immediately(cpu, file):
    engine = Engine(AsyncProgram(cpu), Tokenizer.from_metadata(file.metadata), ctx=CTX)
    outputs(engine, [engine.new_request([5, 6, 7], params(2))])
    state = weakref.ref(engine.state)
    gc.disable()
    try:
        del engine
        assert state() is None
    finally:
        gc.enable()
