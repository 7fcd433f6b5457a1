"""A model on replicas answers as the model alone does, whatever becomes of them."""

import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.cluster.launchers import DyingLauncher, ThreadLauncher, link_of
from woolly import LLM, SamplingParams
from woolly.cluster.fleet_llm import FleetLLM
from woolly.cluster.replica import Replica
from woolly.errors import DeviceError, ModelError, RequestError
from woolly.runtime.cpu import CpuProgram
from woolly.sampling import Sampler
from woolly.serving.settings.options import ModelOptions
from woolly.wire import WireMessage

OPTIONS = ModelOptions(ctx=512, threads=1)
PROMPT = "The sheep said that"
LONG = SamplingParams(seed=3, temperature=1.0, max_tokens=60, ignore_eos=True, logprobs=2)

KINDS = {
    "greedy": SamplingParams(temperature=0, seed=0, max_tokens=20),
    "sampled": SamplingParams(seed=1, temperature=1.2, max_tokens=20),
    "several": SamplingParams(seed=2, temperature=1.0, max_tokens=12, n=3),
    "mirostat": SamplingParams(seed=4, mirostat=2, max_tokens=20),
    "penalties": SamplingParams(seed=5, repeat_penalty=1.3, dry_multiplier=0.8, max_tokens=20, ignore_eos=True),
    "grammar": SamplingParams(seed=6, regex="[a-e]{3,9}", max_tokens=20),
    "prompt": SamplingParams(seed=7, prompt_logprobs=1, logprobs=1, max_tokens=3),
    "shifted": SamplingParams(seed=8, context_shift=True, max_tokens=30, ignore_eos=True),
}


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def alone(tiny_model):
    with LLM(tiny_model, ctx=512, threads=1) as llm:
        yield llm


@pytest.fixture
def fleet(tiny_model):
    opened = []

    def make(*launchers, options=OPTIONS, **more):
        opened.append(FleetLLM(tiny_model, options, launchers, **{"stall": 60.0, **more}))
        return opened[-1]

    yield make
    for llm in opened:
        llm.close()


def test_gpu_layers_are_chosen_by_each_replica(fleet, monkeypatch):
    """The front computes nothing, and holds no layer."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    llm = fleet(ThreadLauncher("a"), options=replace(OPTIONS, gpu_layers="all"))
    assert llm.generate(PROMPT, LONG).text


def test_answers_equal_those_of_a_single_process(fleet, alone):
    llm = fleet(ThreadLauncher("a"), ThreadLauncher("b"))
    assert llm.identity() == alone.identity()
    for params in KINDS.values():
        assert llm.generate(PROMPT, params) == alone.generate(PROMPT, params)
    assert llm.chat("hello", LONG).text == alone.chat("hello", LONG).text
    assert np.array_equal(llm.embed(["a b", "c"], pooling="mean"), alone.embed(["a b", "c"], pooling="mean"))
    assert llm.score([1] * 512) == alone.score([1] * 512)  # nothing is generated, for which there is no room
    assert llm.embed_tokens("a b c")[0].tolist() == alone.embed_tokens("a b c")[0].tolist()
    with pytest.raises(RequestError, match="context holds 512"):
        llm.generate([1] * 600, LONG)
    with pytest.raises(RequestError, match="replicas do not support callbacks"):
        llm.generate(PROMPT, custom_sampler=lambda tokens, logits: 1)


@pytest.mark.parametrize("limit", [1, 17, 59])
def test_killed_process_is_not_noticed_at_any_token(fleet, alone, limit):
    """SIGKILL, before its n-th token is sent; its successor goes on."""
    llm = fleet(DyingLauncher("a", limit))
    stream = llm.generate(PROMPT, LONG, stream=True)
    whole, text = alone.generate(PROMPT, LONG), "".join(chunk.text for chunk in stream)
    assert text == whole.text
    assert (stream.completion.token_ids, stream.completion.logprobs) == (whole.token_ids, whole.logprobs)
    assert llm.fleet.counts["moved"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_request_fails_over(fleet, alone, kind):
    llm = fleet(ThreadLauncher("a", dies_after=3), ThreadLauncher("b", dies_after=3))  # whichever it is given to first
    assert llm.generate(PROMPT, KINDS[kind]).choices == alone.generate(PROMPT, KINDS[kind]).choices
    assert llm.fleet.counts["moved"] >= 1


def test_request_that_kills_every_replica_is_ended(fleet, alone):
    llm = fleet(ThreadLauncher("a", dies_after=2, times=2), ThreadLauncher("b", dies_after=2, times=2))
    with pytest.raises(RuntimeError, match="3 replicas crashed while computing this request"):
        llm.generate(PROMPT, LONG)
    assert llm.generate(PROMPT, LONG) == alone.generate(PROMPT, LONG)  # as soon as one is there again


def test_replica_with_a_failed_gpu_is_replaced_transparently(fleet, alone, monkeypatch):
    launchers = ThreadLauncher("a"), ThreadLauncher("b")
    llm = fleet(*launchers)
    plain, lost = CpuProgram.run, []

    def run(program, batch, *given):
        # The first program that is at its third token of an answer, and no other.
        if program in lost or (not lost and len(batch.tokens) == 1 and batch.positions[0] > 10):
            lost[:] = [program]
            raise DeviceError("the GPU failed", code="lost")
        return plain(program, batch, *given)

    monkeypatch.setattr(CpuProgram, "run", run)
    assert str(llm.generate(PROMPT, LONG)) == str(alone.generate(PROMPT, LONG))
    assert lost and llm.fleet.counts["lost"] == 1
    until(lambda: llm.fleet.n_ready == 2)


def test_unresponsive_replica_is_given_up(fleet, alone):
    llm = fleet(ThreadLauncher("a", silent_after=5), stall=5.0)
    assert llm.generate(PROMPT, LONG) == alone.generate(PROMPT, LONG)
    assert llm.fleet.counts["stalled"] >= 1


def test_replicas_are_replaced_during_streams(fleet, alone):
    launchers = [ThreadLauncher("a"), ThreadLauncher("b")]
    llm = fleet(*launchers, grace=0.0)  # what is open is moved at once
    whole, texts, is_over = alone.generate(PROMPT, LONG).text, [], threading.Event()

    def ask():
        while not is_over.is_set():
            texts.append(llm.generate(PROMPT, LONG).text)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert llm.fleet.update() and llm.fleet.update()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert set(texts) == {whole} and [launcher.n_starts for launcher in launchers] == [3, 3]
    assert llm.fleet.counts["lost"] == 0


def test_replica_with_different_bits_is_rejected(fleet, alone):
    llm = fleet(ThreadLauncher("a"), ThreadLauncher("b", options={"kv_type": "f32"}))
    until(lambda: llm.fleet.counts["refused"])
    refused = next(one for one in llm.fleet.report() if "last_loss" in one)
    assert "it has a different type of cache: w" in refused["last_loss"] or refused["replica"] == "a"
    assert llm.fleet.n_ready == 1
    params = SamplingParams(temperature=0, seed=0, max_tokens=5)
    kv_type = llm.identity().kv_type
    with LLM(alone.path, ctx=512, threads=1, kv_type=kv_type) as same:
        assert llm.generate(PROMPT, params) == same.generate(PROMPT, params)


def test_error_says_why_no_replica_can_serve(fleet):
    with pytest.raises(ModelError, match=r"no replica is ready: .*kv_type is 'f9'"):
        fleet(ThreadLauncher("a", options={"kv_type": "f9"}))


def test_replica_that_hangs_while_loading_blocks_nobody(fleet, alone, monkeypatch):
    monkeypatch.setattr("woolly.cluster.fleet._STRAGGLING", 0.0)
    llm = fleet(ThreadLauncher("a"), ThreadLauncher("b", hangs=True))
    assert [one["state"] for one in llm.fleet.report()] == ["ready", "starting"]
    assert llm.generate(PROMPT, LONG) == alone.generate(PROMPT, LONG)


def test_replica_that_hangs_while_loading_is_given_up(fleet, alone):
    with pytest.raises(ModelError, match=r"no replica is ready: the model did not open within 0\.1 seconds"):
        fleet(ThreadLauncher("a", hangs=True), load_limit=0.1)
    launcher = ThreadLauncher("a")
    llm = fleet(launcher)
    launcher.hangs, llm.fleet._load_limit = True, 0.1
    assert not llm.fleet.update()
    assert llm.generate(PROMPT, LONG) == alone.generate(PROMPT, LONG)


def test_replica_closes_a_model_that_its_front_does_not_wait_for(tiny_model, monkeypatch):
    opened, is_gone = [], threading.Event()

    class Slow(LLM):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            opened.append(self)
            assert is_gone.wait(60)

    monkeypatch.setattr("woolly.cluster.replica.LLM", Slow)
    ours, theirs = socket.socketpair()
    front, replica = link_of(ours), Replica(link_of(theirs, is_client=False))
    front.send(WireMessage("open", {"model": str(tiny_model), "options": {"ctx": 512, "threads": 1}}))
    front.finish()
    replica.serve()
    is_gone.set()
    replica.wait()
    assert opened[0].is_closed


def test_update_to_different_bits_stops(fleet, alone):
    launcher = ThreadLauncher("a")
    llm = fleet(launcher)
    launcher.options = {"kv_type": "f32"}
    assert not llm.fleet.update()
    assert llm.fleet.counts["refused"] == 1 and llm.fleet.n_ready == 1
    assert llm.generate(PROMPT, LONG) == alone.generate(PROMPT, LONG)


def test_cancelled_answer_is_computed_no_further(fleet, monkeypatch):
    plain = Sampler.next  # twenty seconds, if nothing ends it
    monkeypatch.setattr(Sampler, "next", lambda *given: (time.sleep(0.05), plain(*given))[1])
    llm = fleet(ThreadLauncher("a"))
    stream = llm.generate(PROMPT, SamplingParams(seed=1, max_tokens=400, ignore_eos=True), stream=True)
    next(stream)
    stream.close()
    assert stream.completion.finish_reason == "cancelled"
    until(lambda: [one["open"] for one in llm.fleet.report()] == [0])


def test_close_ends_running_requests(fleet):
    llm = fleet(ThreadLauncher("a"))
    stream = llm.generate(PROMPT, SamplingParams(seed=1, max_tokens=400, ignore_eos=True), stream=True)
    next(stream)
    llm.close()
    list(stream)
    assert stream.completion.finish_reason in ("cancelled", "length")
    with pytest.raises(RequestError, match="closed"):
        llm.generate(PROMPT)


def test_conversations_return_to_the_replica_with_their_prefix(fleet):
    llm = fleet(ThreadLauncher("a"), ThreadLauncher("b"))
    params = SamplingParams(temperature=0, max_tokens=2)
    prompts = [[i % 300 + k for i in range(100)] for k in range(4)]
    for prompt in prompts:
        llm.generate(prompt, params)
    for prompt in prompts:
        assert llm.generate([*prompt, 7, 8, 9], params).n_cached_tokens == 96
