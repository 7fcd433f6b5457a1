"""Requests run together give what they give alone; what cannot fit is refused with its numbers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, SamplingParams
from woolly.engine import Engine
from woolly.errors import RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@pytest.fixture
def llm(tmp_path):
    with LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"), ctx=256) as model:
        yield model


def prompts():
    random = np.random.RandomState(5)
    return [random.randint(0, 264, n).tolist() for n in (3, 70, 1, 33, 40)]


def run_all(engine, params):
    requests = [engine.add(engine.new_request(prompt, params)) for prompt in prompts()]
    for _ in range(10_000):
        if all(s.finish_reason for s in requests):
            return requests
        engine.step()
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("chunk", [5, 64, 512])
def test_concurrent_requests_give_the_output_of_each_alone(llm, chunk):
    alone = [llm.generate(prompt, GREEDY) for prompt in prompts()]
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=256, chunk=chunk)
    for one, request in zip(alone, run_all(engine, GREEDY), strict=True):
        assert request.finish_reason == one.finish_reason == "length"
        assert tuple(request.output) == one.token_ids
        assert request.text == one.text


def test_requests_beyond_the_cache_are_served_one_after_another(llm):
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=96)
    wanted = [llm.generate(prompt, GREEDY).token_ids for prompt in prompts()]
    assert [tuple(s.output) for s in run_all(engine, GREEDY)] == wanted
    assert engine.scheduler.pages.n_free == engine.scheduler.pages.n_pages


def test_long_prompt_does_not_stall_a_running_answer(llm):
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=256, chunk=16)
    running = engine.add(engine.new_request([1, 2, 3], GREEDY))
    engine.step()
    engine.add(engine.new_request(prompts()[1], GREEDY))
    before = len(running.output)
    engine.step()
    assert len(running.output) == before + 1


def test_leaving_a_stream_early_frees_its_pages(llm):
    gate = threading.Event()
    waits = replace(LONG, logits_processors=(lambda ids, _: gate.wait(20) if len(ids) > 50 else None,))
    stream = llm.generate([1, 2, 3], waits, stream=True)
    next(stream)
    assert llm.engine.scheduler.pages.n_free < llm.engine.scheduler.pages.n_pages
    gate.set()
    stream.close()
    assert llm.engine.scheduler.pages.n_free == llm.engine.scheduler.pages.n_pages


def test_unread_stream_is_not_scheduled(llm):
    unread = llm.generate([1, 2, 3], GREEDY, stream=True)
    before = len(llm.engine.scheduler.waiting)
    assert llm.generate([4, 5], GREEDY).finish_reason == "length"
    assert before == 0
    assert not llm.engine.scheduler.running
    unread.close()


def test_dropped_stream_frees_its_pages(llm):
    stream = llm.generate([1, 2, 3], LONG, stream=True)
    next(stream)
    del stream
    llm.prefix_stats()  # after the step under way
    assert llm.engine.scheduler.pages.n_free == llm.engine.scheduler.pages.n_pages


def test_interleaved_streams_lose_nothing(llm):
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    wanted = [llm.generate(prompt, params).text for prompt in ([1, 2, 3], [9, 8], [50])]
    streams = [llm.generate(prompt, params, stream=True) for prompt in ([1, 2, 3], [9, 8], [50])]
    texts = ["", "", ""]
    for _ in range(30):
        for i, stream in enumerate(streams):
            texts[i] += "".join(chunk.text for chunk in [next(stream, None)] if chunk)
        assert llm.generate([7], SamplingParams(temperature=0, max_tokens=1)).token_ids
    assert texts == wanted


def test_two_threads_can_generate_concurrently(llm):
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    wanted = [llm.generate(prompt, params).token_ids for prompt in prompts()]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda prompt: llm.generate(prompt, params).token_ids, prompts() * 3))
    assert got == wanted * 3


def test_close_ends_a_stream_with_a_last_chunk(tmp_path):
    llm = LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"))
    stream = llm.generate([1, 2, 3], replace(LONG, max_tokens=400), stream=True)
    next(stream)
    llm.close()
    assert [chunk.finish_reason for chunk in stream if chunk.finish_reason] == ["cancelled"]


def test_streamed_chunks_make_up_the_complete_answer(llm):
    whole = llm.generate([1, 2, 3], GREEDY)
    chunks = list(llm.generate([1, 2, 3], GREEDY, stream=True))
    assert "".join(map(str, chunks)) == whole.text == str(whole)
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["length"]
    assert chunks[-1].finish_reason == "length"


def test_answer_ends_before_the_stop_string(llm):
    whole = llm.generate([1, 2, 3], GREEDY).text
    stop = whole[2:4]
    cut = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop))
    assert cut.finish_reason == "stop"
    assert cut.stop_reason == stop
    assert cut.text == whole[: whole.index(stop)]


def test_stop_token_ends_the_answer_and_is_named(llm):
    whole = llm.generate([1, 2, 3], GREEDY)
    token = whole.token_ids[5]
    cut = llm.generate([1, 2, 3], replace(GREEDY, stop_token_ids=(token,)))
    assert (cut.finish_reason, cut.stop_reason) == ("stop", token)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    with pytest.raises(RequestError, match="token 320 is not in the vocabulary"):
        llm.generate([1], SamplingParams(stop_token_ids=(320,)))


def test_end_token_ends_the_answer_and_is_not_shown(llm, monkeypatch):
    answer = llm.generate([1, 2, 3], GREEDY)
    monkeypatch.setattr(type(llm.tokenizer), "stop_ids", frozenset({answer.token_ids[4]}), raising=False)
    ended = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=12))
    assert ended.finish_reason == "stop"
    assert ended.stop_reason == answer.token_ids[4]
    assert ended.token_ids == answer.token_ids[:5]
    assert answer.text.startswith(ended.text)


def test_seed_of_an_answer_repeats_it(llm):
    first = llm.generate([1, 2, 3], SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True))
    again = llm.generate([1, 2, 3], SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True, seed=first.seed))
    assert again.token_ids == first.token_ids


def test_without_max_tokens_an_answer_may_fill_the_context(llm):
    answer = llm.generate(list(range(200)), SamplingParams(temperature=0, ignore_eos=True))
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 256 - 200


@pytest.mark.parametrize("limit", [-1, 100_000])
def test_max_tokens_beyond_the_context_is_capped(llm, limit):
    answer = llm.generate([1] * 250, SamplingParams(temperature=0, ignore_eos=True, max_tokens=limit))
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 6)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", GREEDY, "the prompt is empty"),
        ((), GREEDY, "the prompt is empty"),
        ([1] * 256, GREEDY, "the prompt has 256 tokens .*, but the context holds 256"),
        ([1, 320], GREEDY, "token 320 is not in the vocabulary"),
        ([-1], GREEDY, "token -1 is not in the vocabulary"),
        ([1.5], GREEDY, "token 1.5 is not in the vocabulary"),
        ([1, "a"], GREEDY, "token 'a' is not in the vocabulary"),
        (["a", 5], GREEDY, "prompt 1: the prompt is of type int"),
        ([[1], [320]], GREEDY, "prompt 1: token 320 is not in the vocabulary"),
        (["a", "b"], [GREEDY], "got 1 params for 2 prompts"),
        ([1], {"max_tokens": 3}, "params is of type dict"),
        ([True], GREEDY, "token True is not in the vocabulary"),
        (b"abc", GREEDY, "the prompt is of type bytes"),
        (5, GREEDY, "the prompt is of type int"),
    ],
)
def test_unservable_request_is_rejected(llm, prompt, params, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, params)
    assert not llm.engine.scheduler.waiting


def test_logits_beyond_the_context_are_rejected(llm):
    assert llm.logits([5]).shape == (1, llm.n_vocab)
    assert llm.logits(list(range(256))).shape == (256, llm.n_vocab)
    with pytest.raises(RequestError, match="the text has 257 tokens, but the context is 256"):
        llm.logits([1] * 257)
