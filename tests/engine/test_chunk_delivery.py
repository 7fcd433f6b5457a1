"""While a device computes a step, the chunks of the step before go to their readers."""

import threading

import pytest

from tests.cases.heads import Ranking256
from tests.cases.tiny import TINY, write_tiny
from woolly import SamplingParams
from woolly.engine import Engine
from woolly.engine.threads.driver import EngineDriver
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend
from woolly.tokens import Tokenizer

CTX = 96


class Device(Ranking256):
    """Logs when a run is queued and when it is done; `meanwhile` comes between."""

    def __init__(self, program, log):
        super().__init__(program)
        self.log = log
        self.batches = []

    def rank(self, batch, state, n, first=0, meanwhile=None):
        self.log.append("queued")
        self.batches.append(batch)
        ranking = super().rank(batch, state, n, first, meanwhile)
        self.log.append("done")
        return ranking


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("meanwhile") / "tiny.gguf")) as file:
        yield file


@pytest.fixture
def device(file):
    return Device(CpuBackend().compile(trace(file), file.tensors, Options(threads=1)), [])


@pytest.fixture
def driver(file, device):
    driver = EngineDriver(
        Engine(device, Tokenizer.from_metadata(file.metadata), ctx=CTX, kv_tokens=8 * CTX, max_running=8)
    )
    yield driver
    driver.close()


def streamed(driver, requests, log):
    """Texts of the chunks, by request."""
    texts, ended = {request: [] for request in requests}, threading.Semaphore(0)

    def listen(request, chunk):
        log.append(f"chunk {len(request.output)}")
        texts[request].append(chunk.text)
        if chunk.finish_reason is not None:
            ended.release()

    driver.add(requests, listen)
    for _ in requests:
        assert ended.acquire(timeout=60)
    return texts


def test_chunk_is_sent_while_the_next_step_runs_and_the_last_immediately(driver, device):
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=0)  # each token has a chunk
    request = driver.engine.new_request([5, 6, 7], params)
    streamed(driver, [request], device.log)
    step = ["queued", "done"]
    assert device.log == [*step, "queued", "chunk 1", "done", "queued", "chunk 2", "done", "chunk 3"]


def test_no_chunk_waits_for_a_draft_model(file, device):
    class Draft:
        def propose(self, wanted):
            device.log.append("drafted")
            return [[] for _ in wanted]

        def forget(self, request):
            pass

    driver = EngineDriver(Engine(device, Tokenizer.from_metadata(file.metadata), ctx=CTX, draft=Draft()))
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=0)
    streamed(driver, [driver.engine.new_request([5, 6, 7], params)], device.log)
    driver.close()
    step = ["queued", "done"]
    # Before the last token there is nothing to draft.
    assert device.log == [*step, "chunk 1", "drafted", *step, "queued", "chunk 2", "done", "chunk 3"]


def test_no_chunk_waits_for_rows_deferred_by_grammars(driver, device):
    engine, log = driver.engine, device.log
    engine.runner.meanwhile = lambda: log.append("chunk")
    request = engine.new_request([5, 6, 7], SamplingParams())
    output_processor = engine._output_processor
    output_processor.begin()
    assert log == []
    output_processor._deferred.defer(request, [], ())
    output_processor.begin()
    assert log == ["chunk"]


def test_stop_string_ends_an_answer_before_the_next_step(driver, device):
    params = SamplingParams(seed=3, max_tokens=12, ignore_eos=True)
    whole = driver.complete([[driver.engine.new_request([9, 8], params)]])[0]
    stop = whole.text[len(whole.text) // 2 :][:1]
    device.batches.clear()
    request = driver.engine.new_request([9, 8], SamplingParams(seed=3, max_tokens=12, ignore_eos=True, stop=(stop,)))
    assert driver.complete([[request]])[0].finish_reason == "stop"
    assert request.text == whole.text[: whole.text.index(stop)]
    assert len(device.batches) == len(request.output) < 12


def test_concurrent_answers_equal_those_alone(driver, device):
    def new(i):
        params = SamplingParams(seed=i, max_tokens=4 + i, ignore_eos=True, temperature=0.0 if i == 2 else 0.8)
        return driver.engine.new_request([3, 4 + i], params)

    alone = [driver.complete([[new(i)]])[0] for i in range(5)]
    texts = streamed(driver, [new(i) for i in range(5)], device.log)
    assert ["".join(parts) for parts in texts.values()] == [one.text for one in alone]
    assert [tuple(request.output) for request in texts] == [one.token_ids for one in alone]


def test_failing_reader_loses_only_its_request(driver):
    bad, good = (driver.engine.new_request([5, i], SamplingParams(seed=i, max_tokens=9, logprobs=0)) for i in (1, 2))

    def raising(request, chunk):
        raise OSError("gone")

    driver.add([bad], raising)
    assert driver.complete([[good]])[0].finish_reason in ("length", "stop")
    driver.call(lambda engine: None)
    assert bad.finish_reason == "cancelled" and len(bad.output) < 9
