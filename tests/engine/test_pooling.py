"""Texts become rows beside the answers: the same bits however they are packed, and no chat waits for a whole job."""

import asyncio
import threading

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, AsyncLLM, RequestError, SamplingParams
from woolly.engine import Engine
from woolly.engine.pooling import PoolingRunner

TEXTS = ["hello world", "a", "b" * 200, "hello", "zebra crossing " * 12, "?"]
ENDLESS = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(TINY["qwen3"], tmp_path_factory.mktemp("meaning") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, threads=1) as model:
        yield model


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_embedding_has_the_same_bits_alone_batched_and_in_parts(path, llm, pooling):
    together = llm.embed(TEXTS, pooling=pooling)
    alone = np.concatenate([llm.embed(text, pooling=pooling) for text in TEXTS])
    np.testing.assert_array_equal(together, alone)
    with LLM(path, threads=2, chunk=7) as other:
        np.testing.assert_array_equal(other.embed(TEXTS[::-1], pooling=pooling)[::-1], together)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_embedding_is_computed_from_the_final_states(llm, pooling):
    states = llm.hidden(llm.tokenize(TEXTS[4]), "output_norm").astype(np.float64)
    wanted = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[pooling]
    np.testing.assert_allclose(llm.embed(TEXTS[4], pooling=pooling, normalize=False)[0], wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(llm.embed(TEXTS[4], pooling=pooling)[0], wanted / np.linalg.norm(wanted), atol=1e-6)


def test_both_backends_give_the_same_embeddings(path, llm):
    with LLM(path, backend="reference") as other:
        np.testing.assert_allclose(other.embed(TEXTS, pooling="mean"), llm.embed(TEXTS, pooling="mean"), atol=2e-3)


def test_job_of_10000_texts_delays_a_chat_by_one_batch_at_a_time(llm, monkeypatch):
    """Each step gives the chat its token, and the job at most one batch of at most a step's rows."""
    log, rows = [], []
    step, run = Engine.step, PoolingRunner._run
    monkeypatch.setattr(
        PoolingRunner, "_run", lambda self, job, batch: rows.append(batch.n_rows) or run(self, job, batch)
    )

    def watched(engine):
        before = engine.pooling.n_batches
        touched = step(engine)
        log.append((len(touched), engine.pooling.n_batches - before, bool(engine.scheduler.running)))
        return touched

    monkeypatch.setattr(Engine, "step", watched)
    vectors = []
    job = threading.Thread(
        target=lambda: vectors.append(llm.embed([f"text {i}" for i in range(10_000)], pooling="last"))
    )
    job.start()
    while not log:
        pass
    chat = llm.generate("once", ENDLESS)
    job.join(60)
    assert len(chat.token_ids) == 400 and vectors[0].shape == (10_000, 64)
    assert max(n_batches for _, n_batches, _ in log) == 1 and max(rows) <= llm.engine.scheduler.chunk
    beside = [entry for entry in log if entry[2]]
    assert len(beside) >= 20 and all(n_touched == 1 for n_touched, _, _ in beside), "a step without the chat's token"
    assert sum(n_batches for _, n_batches, _ in beside) > 10, "the job did not run beside the chat"


def test_two_jobs_take_turns(llm):
    done, are_two = [], threading.Event()

    def watch(name):
        job = llm.prepare_embedding([f"{name} {i}" for i in range(600)], pooling="last")
        job.on_progress = lambda _: done.append(name) if are_two.wait(60) else None
        return job

    jobs = [watch("a"), watch("b")]
    over = [threading.Event(), threading.Event()]
    for job, event in zip(jobs, over, strict=True):
        llm.driver.start_pooling(job, event.set)
    are_two.set()
    assert all(event.wait(60) for event in over)
    assert all(len(job.result()) == 600 for job in jobs)
    first, last = done.index("b"), len(done) - 1 - done[::-1].index("a")
    assert first < last, "the second waited for the whole first"


def test_cancelled_task_ends_its_embedding_job_and_leaves_nothing(path):
    async def body():
        async with AsyncLLM(path, threads=1) as llm:
            started, goes_on = threading.Event(), threading.Event()
            job = llm.llm.prepare_embedding(["x" * 400] * 2000, pooling="mean")
            job.on_progress = lambda _: (started.set(), goes_on.wait(60))
            task = asyncio.ensure_future(llm.pool(lambda: job))
            while not started.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            asyncio.get_running_loop().call_later(0.1, goes_on.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            vectors = await llm.embed(TEXTS, pooling="mean")
            assert len(vectors) == len(TEXTS) and job.is_over and job.n_done < 2000
            assert llm.llm.engine.is_idle and llm.llm.engine.pooling.is_idle
            with pytest.raises(RequestError, match="cancelled, or the LLM was closed"):
                job.result()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_close_ends_an_embedding_job(path):
    llm = LLM(path, threads=1)
    job = llm.prepare_embedding(["x" * 400] * 800, pooling="mean")
    over, started = threading.Event(), threading.Event()
    job.on_progress = lambda _: started.set()
    llm.driver.start_pooling(job, over.set)
    assert started.wait(60)
    llm.close()
    assert over.wait(60)
    with pytest.raises(RequestError, match="closed"):
        job.result()
    with pytest.raises(RequestError, match="this LLM was closed"):
        llm.embed("x", pooling="mean")


def test_error_ends_only_its_embedding_job(llm, monkeypatch):
    run = PoolingRunner._run

    def failing(self, job, batch):
        if 7 in batch.tokens:
            raise MemoryError("no room")
        return run(self, job, batch)

    monkeypatch.setattr(PoolingRunner, "_run", failing)
    with pytest.raises(MemoryError):
        llm.embed([[7, 8]], pooling="last")
    assert llm.embed([[5, 8]], pooling="last").shape == (1, 64)


def test_exception_in_a_progress_callback_fails_only_its_job(llm):
    job = llm.prepare_embedding(["a"], pooling="last")
    job.on_progress = lambda _: 1 / 0
    llm.driver.run_pooling(job)
    with pytest.raises(ZeroDivisionError):
        job.result()
    assert llm.engine.is_idle
