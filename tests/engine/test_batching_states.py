"""Models that keep more than K and V of all tokens: requests together give what they give alone, however they meet."""

import functools

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.hybrid import HybridProgram
from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import TINY, write_tiny
from tests.engine.test_batching import Drafts, cases, drive, result, same
from woolly import LLM, SamplingParams
from woolly.engine import Engine
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend
from woolly.tokens import Tokenizer

CTX = 192
N_REQUESTS = 24
MODELS = ("hybrid", "window", "gemma3", "deepseek-v3", "qwen35", "kimi-linear", "mamba2", "deepseek4")


@functools.cache
def model(name, folder):
    """A program that is opened once; "hybrid" and "window" check what they find in pages and slots."""
    tiny = (FAMILIES | HYBRIDS).get(name, TINY["llama"])
    file = open_gguf(write_tiny(tiny, folder / f"{name}.gguf"))
    plan, tokenizer = trace(file), Tokenizer.from_metadata(file.metadata)
    if name == "hybrid":
        return HybridProgram(plan), tokenizer
    if name == "window":
        return HybridProgram(plan, window=40, n_slots=0), tokenizer
    return CpuBackend().compile(plan, file.tensors, Options(threads=1)), tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


@functools.cache
def chosen():
    """The longest requests: they meet in a tight cache."""
    lengths = [len(case.prompt) + case.params.max_tokens for case in cases()]
    return sorted(range(len(lengths)), key=lengths.__getitem__)[-N_REQUESTS:]


@functools.cache
def alone(name, folder):
    program, tokenizer = model(name, folder)
    out = {}
    for i in chosen():
        out[i] = result(drive(Engine(program, tokenizer, ctx=CTX), [i], 0)[i])
    return out


WAYS = [(5, "tight", False), (32, "tight", True), (512, "plenty", True)]
ONE_BY_ONE = (1, "plenty", False)  # slow


@pytest.mark.parametrize(
    ("name", "chunk", "room", "speculation"),
    [
        (name, *way)
        for name in MODELS
        for way in (*WAYS, *([ONE_BY_ONE] if name in ("hybrid", "deepseek-v3", "qwen35") else []))
    ],
)
def test_concurrent_requests_give_the_output_of_each_alone(folder, name, chunk, room, speculation):
    program, tokenizer = model(name, folder)
    engine = Engine(
        program,
        tokenizer,
        ctx=CTX,
        kv_tokens=20 * CTX if room == "plenty" else 320,
        chunk=chunk,
        max_running=6,
        n_snapshots=40 if room == "plenty" else 3,
        draft=Drafts(program) if speculation else None,
        draft_tokens=5,
    )
    requests = drive(engine, np.random.RandomState(chunk).permutation(chosen()).tolist(), chunk)
    for i, request in requests.items():
        same(result(request), alone(name, folder)[i], cases()[i])
    pools = [engine.scheduler.pages, *filter(None, engine.scheduler.visible_pages.pools)]
    assert [pool.n_free for pool in pools] == [pool.n_pages for pool in pools]
    assert engine.scheduler.slots.n_free == engine.scheduler.slots.n_slots
    if room == "plenty":
        assert engine.prefix_stats().hit_tokens > 0
    else:
        assert engine.scheduler.n_preemptions > 0
    if speculation:
        assert sum(s.n_drafted for s in requests.values()) > 0


def test_hybrid_chat_of_ten_turns_computes_only_new_tokens(folder):
    path = write_tiny(HYBRIDS["lfm2"], folder / "lfm2.gguf")
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    text = np.random.RandomState(0).randint(0, 256, 100).tolist()
    with LLM(path, ctx=512, threads=1) as llm:
        for turn in range(10):
            (request,) = llm.prepare(text, params)[0]
            llm.driver.complete([[request]])
            if turn:
                assert request.prefix.hit_tokens >= 0.9 * len(text)
            text = [*text, *request.output, *range(turn, turn + 5)]
    with LLM(path, ctx=512, threads=1) as fresh:
        assert fresh.generate(list(request.prompt), params).token_ids == tuple(request.output)
