"""AsyncLLM gives the same answers, and a cancelled task cancels its request."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from woolly import LLM, AsyncLLM, CallbackError, RequestError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
# Ten seconds, if nothing ends it.
SLOW = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, logits_processors=(lambda *_: time.sleep(0.05),))
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def wanted(tiny_model):
    with LLM(tiny_model, ctx=256) as llm:
        yield {text: llm.generate(text, GREEDY).token_ids for text in "abcdefgh"}, llm.chat(MESSAGES, GREEDY).text


def run(tiny_model, body):
    async def main():
        async with AsyncLLM(tiny_model, ctx=256) as llm:
            await asyncio.wait_for(body(llm), 60)

    asyncio.run(main())


async def idle(llm):
    while not llm.llm.engine.is_idle:
        await asyncio.sleep(0.005)
    pages = llm.llm.engine.scheduler.pages
    return pages.n_free == pages.n_pages


def test_many_coroutines_share_steps_and_get_their_own_answers(tiny_model, wanted):
    async def body(llm):
        answers = await asyncio.gather(*(llm.generate(text, GREEDY) for text in "abcdefgh"))
        assert {text: a.token_ids for text, a in zip("abcdefgh", answers, strict=True)} == wanted[0]
        assert [a.token_ids for a in await llm.generate(["a", "b"], GREEDY)] == [wanted[0]["a"], wanted[0]["b"]]
        assert (await llm.chat(MESSAGES, GREEDY)).text == wanted[1]

    run(tiny_model, body)


def test_streams_give_the_same_text_and_do_not_block_the_loop(tiny_model, wanted):
    async def body(llm):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        def wait_for_a_tick(*_):
            before, end = ticks, time.monotonic() + 60
            while ticks == before:
                assert time.monotonic() < end, "the loop stands still"
                time.sleep(0.001)

        ticking = asyncio.create_task(tick())
        text = ""
        async for chunk in llm.stream_chat(MESSAGES, GREEDY):
            text += chunk.text
        assert text == wanted[1]
        async for _ in llm.stream("x", replace(GREEDY, logits_processors=(wait_for_a_tick,))):
            pass
        assert ticks >= 10
        ticking.cancel()

    run(tiny_model, body)


def test_cancelled_task_cancels_its_request(tiny_model):
    async def body(llm):
        task = asyncio.create_task(llm.generate("x", SLOW))
        while not llm.llm.engine.scheduler.running:
            await asyncio.sleep(0.001)
        (request,) = llm.llm.engine.scheduler.running
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await idle(llm)
        assert request.finish_reason == "cancelled"
        assert len(request.output) < 200

    run(tiny_model, body)


def test_leaving_or_dropping_a_stream_cancels_its_request(tiny_model):
    async def body(llm):
        async with llm.stream("x", SLOW) as stream:
            async for _ in stream:
                break
        assert await idle(llm)
        stream = llm.stream("x", SLOW)
        await stream.__anext__()
        del stream
        assert await idle(llm)
        never = llm.stream("x", SLOW)
        await never.aclose()
        assert [chunk async for chunk in never] == []

    run(tiny_model, body)


def test_exception_in_a_callback_fails_only_its_request(tiny_model, wanted):
    def crash(*_):
        raise ZeroDivisionError("my own mistake")

    async def body(llm):
        bad = SamplingParams(logits_processors=(crash,))
        good, failed = await asyncio.gather(llm.generate("a", GREEDY), llm.generate("b", bad), return_exceptions=True)
        assert good.token_ids == wanted[0]["a"]
        assert isinstance(failed, CallbackError)
        with pytest.raises(CallbackError):
            async for _ in llm.stream("b", bad):
                pass
        carried = await llm.generate(["a", "b"], [GREEDY, bad])
        assert [c.finish_reason for c in carried] == ["length", "error"]

    run(tiny_model, body)


def test_unservable_request_is_rejected_immediately(tiny_model):
    async def body(llm):
        with pytest.raises(RequestError, match="the prompt is empty"):
            await llm.generate("", GREEDY)
        assert await llm.generate([], GREEDY) == []
        stream = llm.stream([1] * 5000, GREEDY)
        with pytest.raises(RequestError, match="5000 tokens"):
            await stream.__anext__()
        assert [chunk async for chunk in stream] == []
        with pytest.raises(RequestError, match="streaming takes one prompt"):
            llm.stream(["a", "b"], GREEDY)
        assert (await llm.score("some text")).total < 0

    run(tiny_model, body)


def test_engine_failure_reaches_every_request_and_the_engine_works_again(tiny_model, monkeypatch):
    async def body(llm):
        program = llm.llm.engine.program
        broken = True

        def run_(*arguments):
            if broken:
                raise MemoryError("no more of it")
            return type(program).run(program, *arguments)

        monkeypatch.setattr(program, "run", run_)
        answers = await asyncio.gather(*(llm.generate(t, GREEDY) for t in "abc"), return_exceptions=True)
        assert [type(a) for a in answers] == [MemoryError] * 3
        broken = False
        assert (await llm.generate("a", GREEDY)).finish_reason == "length"

    run(tiny_model, body)


def test_close_ends_open_requests_and_the_thread(tiny_model):
    before = {*threading.enumerate()}

    async def main():
        llm = AsyncLLM(tiny_model, ctx=256)
        task = asyncio.create_task(llm.generate("x", SLOW))
        while not llm.llm.engine.scheduler.running:
            await asyncio.sleep(0.001)
        await llm.close()
        assert (await task).finish_reason == "cancelled"
        await llm.close()
        with pytest.raises(RequestError, match="was closed"):
            await llm.generate("x", GREEDY)

    asyncio.run(main())
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name == "woolly-engine"]


def test_streams_are_prepared_off_the_event_loop(tiny_model, monkeypatch):
    async def body(llm):
        prepared = []
        for name in ("prepare", "prepare_chat"):
            make = getattr(llm.llm, name)
            monkeypatch.setattr(
                llm.llm, name, lambda *a, make=make, **k: prepared.append(threading.get_ident()) or make(*a, **k)
            )
        streams = [llm.stream("x", GREEDY), llm.stream_chat(MESSAGES, GREEDY)]
        assert prepared == []
        for stream in streams:
            assert [chunk async for chunk in stream][-1].finish_reason == "length"
        assert len(prepared) == 2 and threading.get_ident() not in prepared

    run(tiny_model, body)


def test_cancelled_score_is_not_computed_to_its_end(tiny_model, monkeypatch):
    async def main():
        async with AsyncLLM(tiny_model, ctx=256, chunk=16) as llm:
            program, started, goes_on = llm.llm.engine.program, asyncio.Event(), threading.Event()
            loop, compute, n_runs = asyncio.get_running_loop(), program.run, 0

            def slow(*arguments):
                nonlocal n_runs
                n_runs += 1
                loop.call_soon_threadsafe(started.set)
                assert goes_on.wait(60)
                return compute(*arguments)

            monkeypatch.setattr(program, "run", slow)
            task = asyncio.create_task(llm.score([1] * 250))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            goes_on.set()
            assert await idle(llm)
            assert n_runs == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_model_is_opened_off_the_event_loop(tiny_model, monkeypatch):
    opened, begun, goes_on = [], threading.Event(), threading.Event()

    class Slow(LLM):
        def __init__(self, *args, **options):
            begun.set()
            assert goes_on.wait(60)
            super().__init__(*args, **options)
            opened.append(self)

    monkeypatch.setattr("woolly.llm.async_llm.LLM", Slow)

    async def main():
        loading = asyncio.create_task(AsyncLLM.open(tiny_model, ctx=64))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert not loading.done()
        goes_on.set()
        async with await loading as llm:
            assert (await llm.generate("a", max_tokens=1)).token_ids
        with pytest.raises(RequestError, match="ctx is 0"):
            await AsyncLLM.open(tiny_model, ctx=0)
        begun.clear()
        goes_on.clear()
        dropped = asyncio.create_task(AsyncLLM.open(tiny_model, ctx=64))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        dropped.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        while len(opened) < 2 or "closed" not in repr(opened[1]):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
