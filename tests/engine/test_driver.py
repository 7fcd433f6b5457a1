"""One thread runs the engine for all: what hits a caller or a callback is its own, and nobody waits for nothing."""

import asyncio
import gc
import signal
import threading
import time
import weakref

import pytest

from woolly import LLM, AsyncLLM, CallbackError, RequestError, SamplingParams
from woolly.engine import Engine
from woolly.engine.loading.step_names import find_step
from woolly.runtime import CancelledRun
from woolly.runtime.cpu import CpuProgram

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture
def llm(tiny_model):
    with LLM(tiny_model, ctx=256, threads=1) as model:
        yield model


def raising(error, after=0):
    calls = []

    def callback(*_):
        calls.append(1)
        if len(calls) > after:
            raise error

    return callback


def in_thread(function):
    out = []
    thread = threading.Thread(target=lambda: out.append(function()), daemon=True)
    thread.start()

    def result():
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
        return out[0]

    return result


class Gate:
    """A processor at which the engine's thread waits until it is let through."""

    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()
        self.params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, logits_processors=(self,))

    def __call__(self, *_):
        self.reached.set()
        assert self.opened.wait(60)


ENDS = [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt(), GeneratorExit()]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["processor", "sampler", "hook"])
def test_exception_in_a_callback_fails_only_its_request(llm, error, where):
    callback = raising(error, after=2)
    own = {
        "processor": {"params": SamplingParams(max_tokens=50, logits_processors=(callback,), ignore_eos=True)},
        "sampler": {"params": SamplingParams(max_tokens=50, custom_sampler=lambda *_: callback() or 1)},
        "hook": {"params": LONG, "hooks": {"blk.0": callback}},
    }
    other = in_thread(lambda: llm.generate("other", LONG).finish_reason)
    with pytest.raises(CallbackError, match=type(error).__name__) as caught:
        llm.generate("x", **own[where])
    assert caught.value.__cause__ is error
    assert other() == "length"
    assert llm.generate("again", GREEDY).finish_reason == "length"


def test_async_request_whose_callback_exits_leaves_the_others_running(tiny_model):
    async def main():
        async with AsyncLLM(tiny_model, ctx=256, threads=1) as llm:
            bad = SamplingParams(logits_processors=(raising(SystemExit(3)),))
            tasks = [llm.generate("hello", LONG), llm.generate("x", bad), llm.generate("later", LONG)]
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    good, bad, later = asyncio.run(main())
    assert good.finish_reason == later.finish_reason == "length"
    assert isinstance(bad, CallbackError)


@pytest.mark.parametrize("error", [MemoryError("no more"), SystemExit(1)], ids=["MemoryError", "SystemExit"])
def test_engine_failure_reaches_every_request_and_the_engine_works_again(llm, monkeypatch, error):
    def step():
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "step", step)
        answers = in_thread(lambda: llm.generate(["a", "b"], GREEDY))()
    assert [type(a.error) for a in answers] == [MemoryError if isinstance(error, MemoryError) else RuntimeError] * 2
    assert llm.generate("a", GREEDY).finish_reason == "length"


def test_engine_that_cannot_release_its_requests_takes_no_others(llm, monkeypatch):
    def broken(*_):
        raise SystemExit(1)

    monkeypatch.setattr(llm.engine, "step", broken)
    monkeypatch.setattr(llm.engine, "fail", broken)
    answers = in_thread(lambda: llm.generate(["a", "b"], GREEDY))()
    assert [a.finish_reason for a in answers] == ["error"] * 2
    with pytest.raises(RequestError, match="open the model again"):
        llm.generate("a", GREEDY)


def test_listener_that_raises_loses_only_its_request(llm):
    bad = llm.prepare("bad", LONG)[0]
    llm.driver.add(bad, raising(SystemExit(1)))
    assert llm.generate("good", LONG).finish_reason == "length"
    assert in_thread(lambda: llm.driver.call(lambda engine: engine.is_idle))()
    assert bad[0].finish_reason == "cancelled"


@pytest.fixture
def interrupts():
    """Ctrl-C raises, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends the signal to the main thread")
def test_keyboard_interrupt_cancels_only_the_interrupted_request(llm, interrupts):
    wanted = llm.generate("other", LONG).token_ids
    gate = Gate()
    other = in_thread(lambda: llm.generate("other", LONG).token_ids)

    sent = threading.Event()

    def interrupt(*_):
        gate()
        if not sent.is_set():  # one for each request: a second one would hit whatever comes after it
            sent.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    params = SamplingParams(max_tokens=200, ignore_eos=True, logits_processors=(interrupt,))
    gate.opened.set()
    for _ in range(5):
        sent.clear()
        with pytest.raises(KeyboardInterrupt):
            llm.generate("mine", params)
    assert other() == wanted
    assert llm.generate("other", LONG).token_ids == wanted
    pages = llm.engine.scheduler.pages
    assert llm.driver.call(lambda _: pages.n_free) == pages.n_pages


def test_interrupted_settle_leaves_the_other_requests_unchanged(llm):
    """Ctrl-C in a step that the main thread itself runs, between the tokens of two requests."""
    wanted = {text: llm.generate(text, LONG).token_ids for text in ("before", "after")}
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=256, kv_tokens=1024)
    hit = SamplingParams(max_tokens=50, ignore_eos=True, logits_processors=(raising(KeyboardInterrupt(), 3),))
    before, own, after = (
        engine.add(engine.new_request(llm.tokenize(text), params))
        for text, params in (("before", LONG), ("own", hit), ("after", LONG))
    )
    with pytest.raises(KeyboardInterrupt):
        while True:
            engine.step()
    assert own.finish_reason == "error"
    while not engine.is_idle:
        engine.step()
    assert tuple(before.output) == wanted["before"]
    assert tuple(after.output) == wanted["after"]
    assert engine.scheduler.pages.n_free == engine.scheduler.pages.n_pages


def test_request_during_close_is_rejected(llm):
    gate, refused = Gate(), []
    late = llm.prepare("late", GREEDY)[0]

    def listen(_, chunk):
        if chunk.finish_reason is not None:
            try:
                llm.driver.add(late, lambda *_: None)
            except RequestError as error:
                refused.append(str(error))

    llm.driver.add(llm.prepare("first", gate.params)[0], listen)
    assert gate.reached.wait(60)
    closing = in_thread(llm.close)
    while not llm.driver._worker.is_ended:
        time.sleep(0.001)
    gate.opened.set()
    closing()
    assert len(refused) == 1 and "was closed" in refused[0]


def test_queued_request_is_cancelled_by_close(llm):
    gate = Gate()
    first = in_thread(lambda: llm.generate("first", gate.params).finish_reason)
    assert gate.reached.wait(60)
    queued = [in_thread(lambda: llm.generate("queued", GREEDY).finish_reason) for _ in range(3)]
    while llm.driver._worker._jobs.qsize() < 3:
        time.sleep(0.001)
    closing = in_thread(llm.close)
    while not llm.driver._worker.is_ended:
        time.sleep(0.001)
    with pytest.raises(RequestError, match="was closed"):
        llm.generate("later", GREEDY)
    gate.opened.set()
    closing()
    assert [first(), *(request() for request in queued)] == ["cancelled"] * 4


def test_open_stream_gets_its_last_chunk_after_close(llm):
    stream = llm.generate("x", LONG, stream=True)
    next(stream)
    unread = llm.generate("x", LONG, stream=True)
    llm.close()
    chunks = list(stream)
    assert chunks[-1].finish_reason in ("cancelled", "length")
    with pytest.raises(RequestError, match="was closed"):
        next(unread)


class Held:
    """A program whose runs last until they are cancelled, once `hold` is set."""

    def __init__(self, program, monkeypatch):
        self.running, self.cancelled, self.hold = threading.Event(), threading.Event(), True
        self._run = program.run
        monkeypatch.setattr(program, "run", self.run)
        monkeypatch.setattr(program, "cancel", self.cancelled.set)

    def run(self, *arguments):
        if self.hold:
            self.running.set()
            assert self.cancelled.wait(60)
            self.cancelled.clear()
            raise CancelledRun("the computation was cancelled")
        return self._run(*arguments)


def test_close_interrupts_the_running_step(llm, monkeypatch):
    held = Held(llm.engine.program, monkeypatch)
    answer = in_thread(lambda: llm.generate("x", LONG))
    assert held.running.wait(60)
    llm.close()
    assert (answer().finish_reason, answer().token_ids) == ("cancelled", ())


def test_abandoned_run_is_interrupted(llm, monkeypatch):
    held = Held(llm.engine.program, monkeypatch)
    request = llm.prepare("x", LONG)[0]
    chunks = []
    llm.driver.add(request, lambda _, chunk: chunks.append(chunk))
    assert held.running.wait(60)
    held.hold = False
    llm.driver.cancel(request, wait=True)
    assert [chunk.finish_reason for chunk in chunks] == ["cancelled"]
    assert request[0].n_computed == 0
    assert llm.generate("x", GREEDY).finish_reason == "length"


def test_wanted_run_continues(llm, monkeypatch):
    engine = llm.engine
    cancels = []
    first, second = llm.prepare(["a", "b"], LONG)
    monkeypatch.setattr(engine.program, "cancel", lambda: cancels.append(1))
    monkeypatch.setattr(engine.runner, "_computing", (*first, *second))
    llm.driver.cancel(first)
    assert not cancels
    llm.driver.cancel(second)
    assert cancels


def test_cancellation_of_the_wrong_run_changes_nothing(llm, monkeypatch):
    prompt = list(range(50))
    wanted = llm.generate(prompt, LONG).token_ids
    program, n_runs, seen = llm.engine.program, 0, []
    run = program.run

    def often_cancelled(*arguments):
        nonlocal n_runs
        n_runs += 1
        result = run(*arguments)
        if n_runs % 3 == 0:
            raise CancelledRun("the computation was cancelled")
        return result

    monkeypatch.setattr(program, "run", often_cancelled)
    hooks = {"blk.0": lambda positions, _: seen.extend(positions.tolist())}
    assert llm.generate(prompt, LONG, hooks=hooks).token_ids == wanted
    assert seen == list(range(50 + 200 - 1))
    assert llm.logits([1, 2, 3]).shape == (3, 320)


def test_close_ends_weight_preparation_of_both_programs(tiny_model, monkeypatch):
    closed = []
    close = CpuProgram.close
    monkeypatch.setattr(CpuProgram, "close", lambda self: (closed.append(id(self)), close(self)))
    LLM(tiny_model, ctx=256, speculation=tiny_model).close()
    assert len(set(closed)) == 2


def test_dropped_llm_leaves_no_thread_and_no_engine(tiny_model):
    async def main():
        llm = AsyncLLM(tiny_model, ctx=256, threads=1)
        await llm.generate("x", GREEDY)
        return weakref.ref(llm.llm.engine)

    engine = asyncio.run(main())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(t.name == "woolly-engine" for t in threading.enumerate()):
        time.sleep(0.001)
    gc.collect()
    assert engine() is None


def test_two_hooks_at_one_fused_step_both_read(llm):
    seen = []
    step = find_step(llm.engine.program, "blk.0")
    hooks = {"blk.0": lambda *_: seen.append("layer"), step: lambda *_: seen.append("number")}
    llm.generate([1, 2], GREEDY, hooks=hooks)
    assert seen == ["layer", "number"] * 10
