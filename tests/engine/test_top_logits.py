"""Requests give the same whether the program ranks logits or hands over whole rows."""

import numpy as np
import pytest

from tests.cases.heads import Ranking256
from tests.cases.tiny import TINY, write_tiny
from tests.engine.test_batching import CTX, cases, drive, result
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly import SamplingParams
from woolly.engine import DraftModelProposer, Engine, PromptLookupProposer
from woolly.engine.step import deferred_rows
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.cuda.backend import CudaBackend
from woolly.tokens import Tokenizer


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    with open_gguf(write_tiny(TINY["llama"], tmp_path_factory.mktemp("heads") / "tiny.gguf")) as file:
        yield file


@pytest.fixture(scope="module")
def program(file):
    return CpuBackend().compile(trace(file), file.tensors, Options(threads=1))


@pytest.fixture(scope="module")
def tokenizer(file):
    return Tokenizer.from_metadata(file.metadata)


def near(got, want):
    """Assert equal tokens and texts, and logprobs up to the order of summation."""
    assert got[:4] == want[:4]
    for ours, theirs in zip(got[4], want[4], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.token == other.token and [t for t, _ in one.top] == [t for t, _ in other.top]
            assert one.logprob == pytest.approx(other.logprob, abs=1e-9)


def parts(request):
    one = result(request)
    return one.tokens, one.text, one.reason, one.stop_reason, one.logprobs


def test_all_kinds_of_requests_give_the_same_from_top_logits(program, tokenizer):
    order = [i for i in range(100) if cases()[i].cancel_after is None]
    results = []
    for used in (program, ranking := Ranking256(program)):
        engine = Engine(used, tokenizer, ctx=CTX, kv_tokens=20 * CTX, max_running=6, draft=PromptLookupProposer())
        results.append({i: parts(request) for i, request in drive(engine, order, 5).items()})
    for i in order:
        near(results[1][i], results[0][i])
    assert ranking.n_heads > 500


def test_only_requests_that_need_all_logits_ask_for_them(program, tokenizer):
    ranking = Ranking256(program)
    engine = Engine(ranking, tokenizer, ctx=CTX, max_running=3)
    usual = [engine.new_request([5, 6, 7 + i], SamplingParams(seed=i, max_tokens=9)) for i in range(2)]
    flat = engine.new_request([9], SamplingParams(seed=1, max_tokens=4, top_k=0, top_p=1.0, min_p=0.0))
    for request in (*usual, flat):
        engine.add(request)
    while not engine.is_idle:
        engine.step()
    assert ranking.n_rows == len(flat.output) and ranking.n_heads > 20
    assert [len(request.output) for request in usual] == [9, 9]


def test_deferred_top_logits_stay_unchanged(program, tokenizer, monkeypatch):
    params = SamplingParams(seed=2, max_tokens=12, regex="[a-f]{3,30}", logprobs=2)
    texts = []
    for seconds in (1e9, 0.0):  # with 0, a step chooses for one request and holds the rows of the others
        monkeypatch.setattr(deferred_rows, "GRAMMAR_SECONDS", seconds)
        engine = Engine(Ranking256(program), tokenizer, ctx=CTX, max_running=4)
        requests = [engine.add(engine.new_request([3, i], params)) for i in range(4)]
        for _ in range(1000):
            engine.step()
        assert engine.is_idle
        texts.append([parts(request) for request in requests])
    assert texts[0] == texts[1]


def test_small_ranking_model_drafts_the_same(program, tokenizer):
    results = []
    for small in (program, ranking := Ranking256(program)):
        engine = Engine(program, tokenizer, ctx=CTX, draft=DraftModelProposer(small, CTX, CTX))
        request = engine.add(engine.new_request([5, 6, 7], SamplingParams(temperature=0, max_tokens=20)))
        while not engine.is_idle:
            engine.step()
        results.append((parts(request), request.n_drafted, request.n_accepted))
    assert results[0] == results[1] and ranking.n_heads > 0


SETTINGS = (
    {"temperature": 0},
    {},
    {"top_k": 0, "top_p": 0.8, "min_p": 0.0, "logprobs": 3},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.3},
    {"repeat_penalty": 1.3, "temperature": 0},
    {"regex": "[a-f]{3,30}", "logprobs": 1},
    {"mirostat": 2},
    {"prompt_logprobs": 1, "temperature": 0},
)


def test_emulated_gpu_ranks_for_the_engine(file, tokenizer):
    gpu = CudaBackend(EmulatedDevice).compile(trace(file), file.tensors, Options(max_rows=64))
    results = []
    for used in (gpu, _Whole(gpu)):
        engine = Engine(used, tokenizer, ctx=CTX, kv_tokens=8 * CTX, max_running=len(SETTINGS))
        requests = [
            engine.new_request([7, 8, 9, 10 + i], SamplingParams(seed=i, max_tokens=3, **given))
            for i, given in enumerate(SETTINGS)
        ]
        for request in requests:
            engine.add(request)
        while not engine.is_idle:
            engine.step()
        results.append([parts(request) for request in requests])
    for got, want in zip(*results, strict=True):
        near(got, want)
    gpu.close()


class _Whole:
    """A program that does not rank."""

    def __init__(self, program):
        for name in ("plan", "running_plan", "draft", "max_rows", "about", "new_state", "cancel"):
            setattr(self, name, getattr(program, name))
        self._program = program

    def run(self, batch, state, first=0, last=None):
        return np.asarray(self._program.run(batch, state, first, last))
