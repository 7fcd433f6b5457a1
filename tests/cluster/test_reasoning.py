"""A thought that is ended by name: at once, on a replica too, and after the same token if another one goes on."""

import time

import pytest

from tests.cluster.launchers import ThreadLauncher
from woolly import LLM, RequestError, SamplingParams
from woolly.cluster.fleet_llm import FleetLLM
from woolly.cluster.pending_requests import ForwardedOptions, PendingAnswer
from woolly.sampling.reasoning_budget import ReasoningMarkers
from woolly.serving.settings.options import ModelOptions
from woolly.wire import BadMessage, WireMessage

MARKS = ReasoningMarkers("<think>", "</think>", is_open=True)
PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True, logit_bias={"x": 100.0})


@pytest.fixture(scope="module")
def alone(tiny_model):
    with LLM(tiny_model, ctx=512, threads=1) as llm:
        yield llm


def answer(llm, params=PARAMS, **options):
    requests = llm.prepare("Sheep", params, reasoning_markers=MARKS, **options)
    llm.driver.complete(requests)
    assert requests[0][0].error is None
    return requests[0][0]


def fleet(model, *launchers):
    return FleetLLM(model, ModelOptions(ctx=512, threads=1), launchers, stall=60.0)


def test_repeated_answer_ends_reasoning_after_the_same_token(alone):
    for n in (0, 1, 7):
        whole = answer(alone, reasoning_ends=(n,))
        assert whole.text.index("</think>") == n and set(whole.text.replace("</think>", "")) == {"x"}
        for known in (n, n + 2, 30):
            assert answer(alone, reasoning_ends=(n,), replay_tokens=whole.output[:known]).output == whole.output
    assert "</think>" not in answer(alone).text


def test_replica_that_takes_over_continues_like_the_first(alone, tiny_model):
    llm = fleet(tiny_model, ThreadLauncher("a", dies_after=12), ThreadLauncher("b", dies_after=12))
    try:
        assert answer(llm, reasoning_ends=(7,)).output == answer(alone, reasoning_ends=(7,)).output
        assert llm.fleet.counts["moved"] >= 1
    finally:
        llm.close()


def test_replica_ends_running_reasoning_and_says_where(tiny_model, monkeypatch):
    endless = SamplingParams(temperature=0, context_shift=True, ignore_eos=True, logit_bias={"x": 100.0})
    llm = fleet(tiny_model, ThreadLauncher("a"))
    try:
        ((request,),) = llm.prepare("Sheep", endless, reasoning_markers=MARKS)
        with pytest.raises(RequestError, match="no replica confirmed"):
            llm.driver.end_reasoning([request])
        llm.driver.add([request], lambda *_: None)
        _until(lambda: request.output)
        assert llm.driver.end_reasoning([request]) is True
        _until(lambda: "</think>" in request.text)
        assert llm.driver._pending[request].reasoning_ends == (request.text.index("</think>"),)
        _until(lambda: request.text.endswith("x"))
        assert llm.driver.end_reasoning([request]) is False  # it is over
        llm.driver.cancel([request])
        assert llm.driver.end_reasoning([request]) is False  # so is the answer
        _waits_once(llm, monkeypatch)
    finally:
        llm.close()


def test_reasoning_reports_of_a_replica_are_validated(alone):
    request = alone.prepare("Sheep", PARAMS, reasoning_markers=MARKS)[0][0]
    pending = PendingAnswer(request, lambda *_: None, ForwardedOptions(), alone.tokenizer.n_vocab)
    pending.id = 1
    assert pending.end_reasoning_message().kind == "end_reasoning" and pending.wait_for_reasoning_end(0) is None
    for at in ("x", -1, 41, 1.5, True):
        with pytest.raises(BadMessage):
            pending.take(WireMessage("reasoning", {"id": 1, "at": at}))
    assert pending.take(WireMessage("reasoning", {"id": 1, "at": 7})) is False
    assert pending.wait_for_reasoning_end(0) is True and pending.message().fields["reasoning_ends"] == (7,)
    for at in (9, 9):
        pending.take(WireMessage("reasoning", {"id": 1, "at": at}))
        assert pending.wait_for_reasoning_end(0) is True and pending.message().fields["reasoning_ends"] == (7, 9)
    pending.take(WireMessage("reasoning", {"id": 1, "at": None}))
    assert pending.wait_for_reasoning_end(0) is False and pending.reasoning_ends == (7, 9)
    assert not pending.is_repeating
    request.output.append(1)
    assert pending.is_repeating  # another replica takes over
    pending.fail(None)
    assert pending.wait_for_reasoning_end(0) is False


@pytest.mark.parametrize("may_call", [False, True])
def test_each_end_of_reasoning_is_repeated_after_its_token(alone, may_call):
    """A second end may come while the first is being written, or in another thought where they are in channels."""
    marks = ReasoningMarkers("<t>", "</t>", after="<n>", answer="<a>", is_open=True, may_call=may_call)

    def sampler(ends=()):
        return alone.prepare("Sheep", PARAMS, reasoning_markers=marks, reasoning_ends=ends)[0][0].sampler

    tokens = iter(alone.tokenizer.encode("xx" + "yy<t>zz", add_special=False))
    first, said = sampler(), []
    for n in range(30):
        if n in (2, 4) or (n > 14 and len(first.reasoning_ends) == 2):
            first.end_reasoning()
        said.append(first.forced[0] if first.forced else next(tokens, 120))
        first.next(said[-1])
    assert len(first.reasoning_ends) == 3
    again = sampler(first.reasoning_ends)
    for token in said:
        assert not again.forced or again.forced[0] == token
        again.next(token)
    assert again.reasoning_ends == first.reasoning_ends


def _waits_once(llm, monkeypatch):
    """Replicas that do not reply are waited for together."""
    now, waited = [0.0], []

    def wait(pending, seconds):
        waited.append(seconds)
        now[0] += 6.0

    monkeypatch.setattr("woolly.cluster.fleet_llm.time.monotonic", lambda: now[0])
    monkeypatch.setattr(PendingAnswer, "wait_for_reasoning_end", wait)
    monkeypatch.setattr(llm.fleet, "send", lambda *_: True)
    requests = [request for (request,) in llm.prepare(["a", "b", "c"], PARAMS, reasoning_markers=MARKS)]
    for request in requests:
        llm.driver._pending[request] = PendingAnswer(
            request, lambda *_: None, ForwardedOptions(), llm.tokenizer.n_vocab
        )
    with pytest.raises(RequestError, match="no replica confirmed"):
        llm.driver.end_reasoning(requests)
    assert waited == [10.0, 4.0, 0.0]
    monkeypatch.undo()


def _until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
