"""The emulated GPU goes on with tokens that it takes itself: those that samplers choose, and what a run computes."""

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.runtime.cuda.deferred_device import DeferredDevice
from tests.runtime.cuda.emulated import EmulatedDevice, source
from tests.runtime.cuda.harness import BATCH
from woolly import SamplingParams
from woolly.engine import Engine
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import PICK, AsyncRanks, Batch, CancelledRun, NextStep, Options, OverwrittenRows
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.gpu.top_k import Ranker
from woolly.sampling.choosers import Greedy
from woolly.sampling.sampler import Sampler
from woolly.tokens import Tokenizer

GREEDY = (0.0, 0.0, 0.0, 1.0, 0, 0)


def pick(chain, row):
    """Arguments for the device that follow a sampler chain."""
    if isinstance(chain, Greedy):
        return *GREEDY, row
    return chain.random.peek64(), chain.p, chain.log_p, chain.temperature, chain.k, chain.min_keep, row


PARAMS = [
    {},
    {"temperature": 0},
    {"top_p": 1.0, "min_p": 0.0},
    {"top_k": 1},
    {"top_k": 60, "top_p": 0.3, "min_p": 0.0},
    {"min_keep": 3, "top_p": 0.01, "min_p": 0.9},
    {"temperature": 1e-30},
    {"temperature": 30.0, "top_p": 1.0},
]


def test_device_takes_the_sampled_tokens():
    device, n_rows, width = EmulatedDevice(source("rank")), 40, 320
    rows = np.random.RandomState(1).standard_normal((n_rows, width)).astype(np.float32) * 3
    samplers = [Sampler(SamplingParams(seed=i, **PARAMS[i % len(PARAMS)])) for i in range(n_rows)]
    order = np.random.RandomState(2).permutation(n_rows)  # of the rows in the batch that follows
    picks = np.array([pick(samplers[i].device_chain, i) for i in order], PICK)
    batch, tokens = np.zeros(1, BATCH), np.zeros(n_rows, np.int32)
    places = [device.allocate(array.nbytes) for array in (batch, rows, tokens, picks)]
    batch["n_rows"] = batch["n_output"] = n_rows
    for place, array in zip(places, (batch, rows, tokens, picks), strict=True):
        device.upload(place, array)
    ranker = Ranker(device, places[0], places[1], width, n_rows)
    ranker.queue(64, n_rows)
    batch["tokens"] = places[2]
    device.upload(places[0], batch)
    ranker.feed(places[3], n_rows)
    device.download(places[2], tokens)
    assert tokens.tolist() == [samplers[i].next(rows[i]).token for i in order]
    device.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("ahead") / "tiny.gguf")) as file:
        program = CudaBackend(EmulatedDevice).compile(trace(file), file.tensors, Options(max_rows=64))
        yield program
        program.close()


def one_row(positions, tokens=None):
    """A batch of one row of each sequence, each on a page of its own."""
    tokens = [0] * len(positions) if tokens is None else tokens
    return Batch.of([([token], at, [i]) for i, (token, at) in enumerate(zip(tokens, positions, strict=True))])


def make_next_step(positions, rows):
    return NextStep(one_row(positions), np.array([(*GREEDY, row) for row in rows], PICK), 40)


def test_predicted_run_equals_a_run_of_these_tokens(program):
    assert isinstance(program, AsyncRanks)
    state, other = program.new_state(2), program.new_state(2)
    prompts = Batch.of([([5, 6, 7], 0, [0]), ([9, 8], 0, [1])])
    first, second = make_next_step([3, 2], [0, 1]), make_next_step([3], [1])
    second.batch.pages[0] = 1
    plain = program.rank(prompts, other, 40).ids[:, 0].tolist()
    ranking = program.rank(prompts, state, 40, next_step=first)
    assert ranking.ids[:, 0].tolist() == plain
    assert program.has_queued(first.batch) and not program.has_queued(prompts)
    with pytest.raises(OverwrittenRows, match="another run"):
        ranking.rows(0, 1)
    ranking = program.rank(first.batch, state, 1, next_step=second)
    assert ranking.tokens.tolist() == plain
    found = [ranking.ids.copy(), ranking.logits.copy()]
    ranking = program.rank(second.batch, state, 1)
    last = [ranking.ids.copy(), ranking.logits.copy(), ranking.rows(0, 1).copy()]
    expected = program.rank(one_row([3, 2], plain), other, 40)
    np.testing.assert_array_equal(found[0], expected.ids)
    np.testing.assert_array_equal(found[1], expected.logits)
    token = int(expected.ids[1, 0])
    assert ranking.tokens.tolist() == [token]
    expected = program.rank(Batch.of([([token], 3, [1])]), other, 40)
    for one, same in zip(last, (expected.ids, expected.logits, expected.rows(0, 1)), strict=True):
        np.testing.assert_array_equal(one, same)


def test_other_run_replaces_the_predicted_one(program):
    state, batch = program.new_state(2), one_row([0, 0], [4, 5])
    for other in (program.run, lambda *it: program.rank(*it, 1)):
        next_one = make_next_step([1, 1], [1, 0])
        before = program.rank(batch, state, 1, next_step=next_one).ids.copy()
        assert program.has_queued(next_one.batch)
        other(one_row([0], [3]), program.new_state(1))
        assert not program.has_queued(next_one.batch)
        np.testing.assert_array_equal(program.rank(batch, state, 1).ids, before)


def test_cancelled_run_is_followed_by_none(program):
    next_one = make_next_step([1, 1], [0, 1])
    with pytest.raises(CancelledRun):
        program.rank(one_row([0, 0], [4, 5]), program.new_state(2), 1, meanwhile=program.cancel, next_step=next_one)
    assert not program.has_queued(next_one.batch)


def test_error_during_prediction_leaves_nothing_in_flight(program):
    def failing():
        raise OSError("gone")

    next_one = make_next_step([1, 1], [0, 1])
    with pytest.raises(OSError, match="gone"):
        program.rank(one_row([0, 0], [4, 5]), program.new_state(2), 1, meanwhile=failing, next_step=next_one)
    assert not program.has_queued(next_one.batch)
    with pytest.raises(ValueError, match="outside the cache"):
        program.rank(one_row([0], [4]), program.new_state(1), 1, next_step=make_next_step([1, 1], [0, 0]))
    assert program.rank(one_row([0], [4]), program.new_state(1), 1).tokens.tolist() == [4]


class Waits:
    """A program that does not go ahead."""

    def __init__(self, program):
        self._program = program

    def __getattr__(self, name):
        if name == "has_queued":
            raise AttributeError(name)
        return getattr(self._program, name)


def test_deferred_work_changes_no_answer(tmp_path):
    """Requests that cross a page, end at different times, are cancelled, or get pages that an async step writes."""

    def answers(program):
        engine = Engine(program, tokenizer, ctx=64, kv_tokens=5 * 32, max_running=3)
        params = [SamplingParams(seed=i, max_tokens=3 + 2 * i, ignore_eos=True) for i in range(5)]
        prompts = [3, 4], [*range(5, 35)], [6], [7, 8], [9]
        requests = [engine.new_request(prompt, params[i]) for i, prompt in enumerate(prompts)]
        for request in requests[:4]:
            engine.add(request)
        for step in range(40):
            engine.step()
            if step == 3:
                engine.cancel(requests[2])
                engine.add(requests[4])
        assert engine.is_idle
        return [request.output for request in requests if request.finish_reason == "length"]

    with open_gguf(write_tiny(TINY["llama"], tmp_path / "tiny.gguf")) as file:
        program = CudaBackend(DeferredDevice).compile(trace(file), file.tensors, Options(max_rows=64))
        tokenizer = Tokenizer.from_metadata(file.metadata)
        found = answers(program)
        assert len(found) == 4 and found == answers(Waits(program))
        program.close()
