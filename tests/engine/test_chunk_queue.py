"""Chunk queues: every chunk reaches its reader once and in order, on a thread and on an event loop."""

import asyncio
import gc
import threading
import weakref
from types import SimpleNamespace

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, Chunk, RequestError, SamplingParams
from woolly.engine.threads.chunk_queue import AsyncChunkQueue, LoopNotifier, ThreadChunkQueue
from woolly.sampling.logprobs import TokenLogprob

N = 500


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = write_tiny(TINY["llama"], tmp_path_factory.mktemp("chunks") / "tiny.gguf")
    with LLM(path, ctx=64, threads=1) as model:
        yield model


def chunk(text, *, last=False):
    return Chunk(text=text, finish_reason="stop" if last else None)


def fill(*queues):
    """Posts N chunks to each queue in turn, as the engine's thread does."""
    for i in range(N):
        for chunks in queues:
            chunks.put(None, chunk(str(i), last=i == N - 1))


def test_thread_reads_every_chunk_in_order_and_then_none():
    chunks = ThreadChunkQueue(1)
    thread = threading.Thread(target=fill, args=(chunks,))
    thread.start()
    assert [chunks.read().text for _ in range(N)] == [str(i) for i in range(N)]
    thread.join()
    assert chunks.is_over
    assert chunks.read() is None


def test_tasks_with_one_notifier_each_read_their_own_chunks():
    async def main():
        notifier = LoopNotifier()
        queues = [AsyncChunkQueue(1, notifier) for _ in range(3)]
        thread = threading.Thread(target=fill, args=queues)
        thread.start()

        async def texts(chunks):
            out = []
            while (one := await chunks.read()) is not None:
                out.append(one.text)
            return out

        found = await asyncio.wait_for(asyncio.gather(*map(texts, queues)), 60)
        thread.join()
        assert found == [[str(i) for i in range(N)]] * 3

    asyncio.run(main())


def test_one_call_into_the_loop_wakes_all_readers_of_a_step(monkeypatch):
    async def main():
        notifier = LoopNotifier()
        queues = [AsyncChunkQueue(1, notifier) for _ in range(8)]
        readers = [asyncio.create_task(chunks.read()) for chunks in queues]
        await asyncio.sleep(0)
        calls = []
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (calls.append(args), real(*args)))
        for chunks in queues:
            chunks.put(None, chunk("x", last=True))
        assert len(await asyncio.gather(*readers)) == 8
        assert len(calls) == 1

    asyncio.run(main())


def test_chunk_for_a_closed_loop_is_kept_and_raises_nothing():
    async def main():
        return AsyncChunkQueue(1, LoopNotifier())

    chunks = asyncio.run(main())
    chunks.put(None, chunk("x", last=True))
    assert chunks.take().text == "x"


def test_chunk_queue_does_not_keep_its_reader_alive(llm):
    stream = llm.generate("a", SamplingParams(max_tokens=30, ignore_eos=True), stream=True)
    next(stream)
    dropped = weakref.ref(stream)
    del stream
    gc.collect()
    assert dropped() is None


def test_stream_has_its_seed_and_at_its_end_its_completion(llm):
    params = SamplingParams(max_tokens=5, seed=7, ignore_eos=True)
    stream = llm.generate("a", params, stream=True)
    assert stream.seed == 7
    with pytest.raises(RequestError, match="is unfinished"):
        _ = stream.completion
    text = "".join(part.text for part in stream)
    assert stream.completion.text == text == llm.generate("a", params).text
    assert stream.requests[0].output == list(stream.completion.token_ids)


def test_texts_waiting_for_a_late_reader_are_one_chunk():
    """Chunks of another answer, with more than text, or the last one are not merged."""
    logprobs = (TokenLogprob(token=1, text="c", logprob=-1.0, top=()),)
    posted = [
        *(Chunk(text="a"), Chunk(text="b"), Chunk(text="other", index=1), Chunk(text="c", logprobs=logprobs)),
        *(Chunk(text="", n_computed=7), Chunk(text="d"), Chunk(text=""), Chunk(text="e")),
        *(Chunk(text="f", finish_reason="stop"), Chunk(text="g", index=1, finish_reason="stop")),
    ]

    async def main():
        chunks = AsyncChunkQueue(2, LoopNotifier())
        for one in posted:
            chunks.put(None, one)
        found = []
        while (one := await chunks.read_joined()) is not None:
            found.append(one)
        assert chunks.is_over
        return found

    found = asyncio.run(main())
    assert [one.text for one in found] == ["ab", "other", "c", "", "de", "f", "g"]
    assert found[2].logprobs == logprobs and found[3].n_computed == 7
    assert [one.finish_reason for one in found[-2:]] == ["stop", "stop"] and [one.index for one in found].count(1) == 2


def test_pausing_notifier_wakes_every_reader(monkeypatch):
    """Rounds that take long, by a clock of their own, are followed by a rest; what comes meanwhile is read later."""
    ticks = iter(range(10**6))
    monkeypatch.setattr("woolly.engine.threads.chunk_queue.time", SimpleNamespace(monotonic=lambda: 0.01 * next(ticks)))

    async def main():
        notifier = LoopNotifier()
        queues = [AsyncChunkQueue(1, notifier) for _ in range(3)]
        thread = threading.Thread(target=fill, args=queues)
        thread.start()

        async def text(chunks):
            out = ""
            while (one := await chunks.read_joined()) is not None:
                out += one.text
            return out

        found = await asyncio.wait_for(asyncio.gather(*map(text, queues)), 60)
        thread.join()
        return found

    assert asyncio.run(main()) == ["".join(map(str, range(N)))] * 3
