"""Answers of masked diffusion models: block by block, equal whatever runs beside, with parameters rejected by name."""

import asyncio
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

from tests.cases.diffusion import DIFFUSION, MASK
from tests.cases.families import FAMILIES
from tests.cases.tiny import tensors, write_tiny
from tests.engine.test_adapters import write_lora
from woolly import LLM, AsyncLLM, SamplingParams
from woolly.engine import Engine
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.measure.bench import Bench
from woolly.measure.perplexity import Scorer
from woolly.models import trace
from woolly.runtime import Options, get_backend

PROMPT = [5, 9, 14, 40]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, diffusion_block_length=4)


@pytest.fixture(scope="module", params=["llada", "dream"])
def llm(request, tmp_path_factory):
    path = write_tiny(DIFFUSION[request.param], tmp_path_factory.mktemp("diffusion") / "tiny.gguf")
    with LLM(path, backend="cpu", ctx=256) as llm:
        yield llm


def filled_in(llm, prompt, length, block, guidance=0.0):
    """One token per step, the likeliest of the surest position."""
    ids, shift = [*prompt, *[MASK] * length], llm.plan.diffusion.is_shifted
    for first in range(len(prompt), len(ids), block):
        at = range(first, min(first + block, len(ids)))
        for _ in at:
            rows = llm.logits(ids).astype(np.float64)
            if guidance:
                free = llm.logits([*[MASK] * len(prompt), *ids[len(prompt) :]]).astype(np.float64)
                rows = free + (guidance + 1) * (rows - free)
            rows[:, MASK] = -np.inf
            shares = np.exp(rows - rows.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            sure = shares.max(1) if not shift else (shares * np.log(shares + 1e-10)).sum(1)
            best = max((i for i in at if ids[i] == MASK), key=lambda i: (sure[i - shift], -i))
            ids[best] = int(rows[best - shift].argmax())
    return ids[len(prompt) :]


@pytest.mark.parametrize("guidance", [0.0, 1.5])
def test_answer_is_that_of_the_published_procedure(llm, guidance):
    params = replace(GREEDY, diffusion_cfg_scale=guidance)
    found = llm.generate(PROMPT, params)
    assert list(found.token_ids) == filled_in(llm, PROMPT, 12, 4, guidance)
    assert found.finish_reason == "length"


def test_blocks_arrive_one_by_one(llm):
    whole = llm.generate(PROMPT, GREEDY)
    chunks = list(llm.generate(PROMPT, GREEDY, stream=True))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len([chunk for chunk in chunks if chunk.text]) <= 3


def answers(found):
    return [one.token_ids for one in found.choices]


def test_answers_do_not_depend_on_each_other(llm):
    drawn = SamplingParams(seed=4, max_tokens=9, ignore_eos=True, diffusion_block_length=3, diffusion_steps=5, n=2)
    prompts = [PROMPT, [7, 8], [1] * 30]
    alone = [answers(llm.generate(prompt, drawn)) for prompt in prompts]
    together = [answers(found) for found in llm.generate(prompts, drawn)]
    assert together == alone and alone[0][0] != alone[0][1]
    assert MASK not in np.concatenate([answer for both in alone for answer in both])


def test_answer_ends_at_the_first_stop_token_in_position_order(llm):
    ids = list(llm.generate(PROMPT, GREEDY).token_ids)
    end = ids[5]
    found = llm.generate(PROMPT, replace(GREEDY, stop_token_ids=(end,)))
    assert list(found.token_ids)[: ids.index(end)] == ids[: ids.index(end)] and found.finish_reason == "stop"
    assert len(found.token_ids) <= ids.index(end) + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_p": 0.2},
        {"logprobs": 1},
        {"prompt_logprobs": 1},
        {"repeat_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"mirostat": 2},
        {"dry_multiplier": 1.0},
        {"typical_p": 0.5},
        {"xtc_probability": 0.5},
        {"min_tokens": 3},
        {"regex": "a+"},
        {"grammar": 'root ::= "a"'},
        {"json_object": True},
        {"choice": ("a", "b")},
        {"context_shift": True},
        {"logit_bias": {3: 1.0}},
        {"reasoning_budget": 9},
        {"samplers": ("top_k",)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_parameter_without_meaning_is_rejected_by_name(llm, wrong):
    (name,) = wrong
    with pytest.raises(RequestError, match=f"{name} is set, but diffusion language models") as caught:
        llm.generate(PROMPT, SamplingParams(max_tokens=4, **wrong))
    assert caught.value.field == name


def test_disabled_samplers_are_accepted(llm):
    assert len(llm.generate(PROMPT, replace(GREEDY, min_p=0.0, top_k=0, top_p=1.0)).token_ids) == 12


def test_too_long_prompt_is_rejected_and_length_is_bounded_by_the_context(llm):
    with pytest.raises(RequestError, match="the context holds 256"):
        llm.generate([1] * 256, GREEDY)
    assert len(llm.generate([1] * 250, replace(GREEDY, max_tokens=99)).token_ids) == 6


def test_prompt_is_bounded_by_the_rows_of_a_batch(llm, monkeypatch):
    monkeypatch.setattr(llm.driver.engine.program, "max_rows", 64)
    with pytest.raises(RequestError, match="the context holds 64 and") as caught:
        llm.generate([1] * 64, GREEDY)
    assert (caught.value.code, caught.value.limit) == ("context_length", 64)
    assert len(llm.generate([1] * 60, GREEDY).token_ids) == 4


def test_logits_of_a_step_are_bounded(llm, monkeypatch):
    width = llm.plan.width
    monkeypatch.setattr("woolly.engine.diffusion.settings._MAX_LOGITS", 4 * width * 40)
    free = replace(GREEDY, max_tokens=80, diffusion_block_length=None)
    for params, most in ((replace(free, diffusion_block_length=41), 40), (replace(free, diffusion_cfg_scale=1.0), 20)):
        with pytest.raises(RequestError, match=f"suffice for {most} tokens; set max_tokens") as caught:
            llm.generate(PROMPT, params)
        assert caught.value.limit == most
    assert len(llm.generate(PROMPT, replace(free, diffusion_block_length=40)).token_ids) == 80
    if llm.plan.diffusion.is_shifted:  # the block is the answer
        with pytest.raises(RequestError, match="blocks of 80 tokens") as caught:
            llm.generate(PROMPT, free)
        assert caught.value.field == "max_tokens"
        assert len(llm.generate(PROMPT, replace(free, max_tokens=40)).token_ids) == 40


def test_request_that_cannot_be_queued_fails_alone(llm, monkeypatch):
    usual = llm.generate(PROMPT, GREEDY).token_ids
    stream = iter(llm.generate(PROMPT, replace(GREEDY, max_tokens=100), stream=True))
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr("woolly.engine.diffusion.runner.Canvas", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.generate(PROMPT, GREEDY)
    assert list(stream)[-1].finish_reason == "length"
    assert llm.generate(PROMPT, GREEDY).token_ids == usual


def test_adapters_have_the_scales_of_each_request(tmp_path):
    path = write_tiny(DIFFUSION["llada"], tmp_path / "tiny.gguf")
    rows, columns = tensors(DIFFUSION["llada"])["output.weight"].shape
    random = np.random.RandomState(3)
    pair = {
        "output.weight.lora_a": random.randn(2, columns).astype(np.float32),
        "output.weight.lora_b": random.randn(rows, 2).astype(np.float32),
    }
    adapter = write_lora(tmp_path / "own.gguf", pair, **{"general.architecture": "llada"})
    with LLM(path, backend="cpu", ctx=256) as llm:
        plain = llm.generate(PROMPT, GREEDY).token_ids
    with LLM(path, backend="cpu", ctx=256, adapters={"own": adapter}) as llm:
        scales = [{"own": scale} for scale in (0.0, 1.0, 0.25)]
        off, whole, part = (llm.generate(PROMPT, GREEDY, adapters=scale).token_ids for scale in scales)
        assert off == plain and len({off, whole, part}) == 3
        assert llm.generate(PROMPT, GREEDY).token_ids == whole
        stream = iter(llm.generate(PROMPT, replace(GREEDY, max_tokens=100), stream=True))
        next(stream)
        assert llm.driver.call(Engine.used_adapters) == {0}
        assert llm.generate(PROMPT, GREEDY, adapters={}).token_ids == plain  # in one batch with the stream
        stream.close()


def test_autoregressive_model_rejects_options_of_diffusion(tmp_path):
    with (
        LLM(write_tiny(FAMILIES["llama"], tmp_path / "tiny.gguf"), backend="reference") as llm,
        pytest.raises(RequestError, match="diffusion_steps is set, but this model is not a diffusion"),
    ):
        llm.generate(PROMPT, SamplingParams(max_tokens=4, diffusion_steps=4))


def test_speculation_is_rejected(tmp_path):
    path = write_tiny(DIFFUSION["llada"], tmp_path / "tiny.gguf")
    with pytest.raises(RequestError, match="speculative decoding is not supported for diffusion"):
        LLM(path, backend="cpu", speculation="prompt_lookup")
    main = write_tiny(FAMILIES["llama"], tmp_path / "main.gguf")
    with pytest.raises(RequestError, match="diffusion language models cannot be draft models"):
        LLM(main, backend="cpu", speculation=path)


def test_cancelled_stream_ends_the_request(llm):
    chunks = iter(llm.generate(PROMPT, replace(GREEDY, max_tokens=200), stream=True))
    next(chunks)
    chunks.close()
    assert len(llm.generate(PROMPT, GREEDY).token_ids) == 12


def test_close_ends_a_running_answer(tmp_path):
    llm = LLM(write_tiny(DIFFUSION["llada"], tmp_path / "tiny.gguf"), backend="cpu", ctx=256)
    ended = []
    waiting = Thread(target=lambda: ended.append(llm.generate(PROMPT, replace(GREEDY, max_tokens=250))), daemon=True)
    waiting.start()
    while not llm.driver.call(lambda engine: engine.requests):
        pass
    llm.close()
    waiting.join(10)
    assert [one.finish_reason for one in ended] == ["cancelled"]


def test_seed_of_an_answer_gives_it_again(llm):
    first = llm.generate(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))
    again = llm.generate(PROMPT, SamplingParams(max_tokens=8, ignore_eos=True, seed=first.seed))
    assert again.token_ids == first.token_ids


def test_model_has_no_next_token_probabilities_or_phases(tmp_path):
    path = write_tiny(DIFFUSION["dream"], tmp_path / "tiny.gguf")
    with pytest.raises(RequestError, match="has no probabilities of the next token"):
        Scorer(path, ctx=32, threads=1, kv_type=None, backend="cpu")
    with open_gguf(path) as file:
        program = get_backend("reference").compile(trace(file), file.tensors, Options())
        with pytest.raises(RequestError, match="no prompt and decoding phases"):
            Bench(program, [])
    with (
        LLM(path, backend="reference") as llm,
        pytest.raises(RequestError, match="has no probabilities of the next token"),
    ):
        llm.score(PROMPT)


def test_concurrent_requests_have_the_answers_of_single_ones(tmp_path):
    path = write_tiny(DIFFUSION["llada"], tmp_path / "tiny.gguf")

    async def both():
        async with AsyncLLM(path, backend="cpu", ctx=128) as llm:
            together = await asyncio.gather(*(llm.generate([i, 7], GREEDY) for i in (3, 9)))
            return together, [await llm.generate([i, 7], GREEDY) for i in (3, 9)]

    together, alone = asyncio.run(both())
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
