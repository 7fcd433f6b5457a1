"""Lists, several answers, scores, hooks, and requests that fail: what one request does is its own affair."""

import gc
import math
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, CallbackError, RequestError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SEEDED = SamplingParams(seed=9, temperature=1.2, max_tokens=15, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, ctx=256) as model:
        yield model


def crash(*_):
    raise ZeroDivisionError("my own mistake")


def test_list_of_prompts_gives_a_list_in_order(llm):
    prompts = ["one", "two and more", "three"]
    assert [c.token_ids for c in llm.generate(prompts, GREEDY)] == [llm.generate(p, GREEDY).token_ids for p in prompts]
    lists = [llm.tokenize(p) for p in prompts]
    assert [c.text for c in llm.generate(lists, GREEDY)] == [c.text for c in llm.generate(tuple(prompts), GREEDY)]


def test_each_prompt_of_a_list_may_have_its_own_params(llm):
    both = llm.generate(["a", "a"], [GREEDY, SEEDED])
    assert both[0].token_ids == llm.generate("a", GREEDY).token_ids
    assert both[1].token_ids == llm.generate("a", SEEDED).token_ids


def test_progress_is_drawn_only_on_stderr(llm, capsys):
    wanted = llm.generate(["one", "two"], GREEDY)
    assert [c.text for c in llm.generate(["one", "two"], GREEDY, progress=True)] == [c.text for c in wanted]
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err
    llm.generate("one", GREEDY)
    assert capsys.readouterr() == ("", "")


def test_several_answers_have_consecutive_seeds(llm):
    answer = llm.generate("once", SamplingParams(n=3, seed=9, temperature=1.2, max_tokens=15, ignore_eos=True))
    assert len(answer.choices) == 3
    assert answer.choices[0] is answer
    assert [c.seed for c in answer.choices] == [9, 10, 11]
    for choice in answer.choices:
        alone = llm.generate("once", SamplingParams(seed=choice.seed, temperature=1.2, max_tokens=15, ignore_eos=True))
        assert alone.token_ids == choice.token_ids
    unseeded = llm.generate("once", SamplingParams(n=3, max_tokens=2))
    assert len({c.seed for c in unseeded.choices}) == 3


def test_several_answers_stream_interleaved_and_each_ends_once(llm):
    params = SamplingParams(n=3, seed=9, temperature=1.2, max_tokens=15, ignore_eos=True, logprobs=1)
    whole = llm.generate("once", params)
    chunks = list(llm.generate("once", params, stream=True))
    for index, choice in enumerate(whole.choices):
        mine = [chunk for chunk in chunks if chunk.index == index]
        assert "".join(map(str, mine)) == choice.text
        assert [c.finish_reason for c in mine if c.finish_reason] == ["length"]
        assert tuple(t for c in mine for t in c.logprobs) == choice.logprobs
    assert len({chunk.index for chunk in chunks[:6]}) == 3


def test_logprobs_match_the_logits(llm):
    answer = llm.generate(
        "abc", SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    )
    ids = [*llm.tokenize("abc"), *answer.token_ids]
    logits = llm.logits(ids).astype(np.float64)
    logprobs = logits - logits.max(1, keepdims=True)
    logprobs -= np.log(np.exp(logprobs).sum(1, keepdims=True))
    assert answer.prompt_logprobs[0] is None
    found = [t.logprob for t in (*answer.prompt_logprobs[1:], *answer.logprobs)]
    np.testing.assert_allclose(found, [row[i] for row, i in zip(logprobs, ids[1:], strict=False)], atol=1e-9)
    assert [len(t.top) for t in answer.logprobs] == [2] * 5
    assert llm.generate("abc", GREEDY).logprobs is None


def test_score_is_the_log_probability_of_each_token(llm):
    score = llm.score("some text")
    ids = llm.tokenize("some text")
    asked = llm.generate(ids, SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert score.token_ids == tuple(ids)
    assert score.logprobs == (None, *(t.logprob for t in asked.prompt_logprobs[1:]))
    assert score.total == pytest.approx(sum(score.logprobs[1:]))
    assert score.perplexity == pytest.approx(math.exp(-score.total / (len(ids) - 1)))
    assert llm.score([5]).total == 0
    assert len(llm.score(list(range(256))).logprobs) == 256
    with pytest.raises(RequestError, match="the text has 257 tokens, but the context is 256"):
        llm.score([1] * 257)
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.score("")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_hidden_states_are_read_by_layer_weight_or_number(tiny_model, backend):
    with LLM(tiny_model, ctx=256, backend=backend) as llm:
        ids = list(range(40))
        last = llm.hidden(ids, "blk.1")
        assert last.shape == (40, 64)
        np.testing.assert_array_equal(llm.hidden(ids, first_of_the_head(llm) - 1), last)
        # What the layers leave, normed and multiplied by the last matrix, are the logits.
        normed = last / np.sqrt((last.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
        file = llm._loaded[0].file
        normed *= file.tensors["output_norm.weight"].dequantize()
        final = llm.hidden(ids, "output_norm")
        assert final.shape == (40, 64) and final.dtype == np.float32
        np.testing.assert_allclose(final, normed, rtol=1e-5, atol=1e-6)
        logits = normed @ file.tensors["output.weight"].dequantize().T
        np.testing.assert_allclose(logits, llm.logits(ids), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("step", ["blk.0", "blk.1.attn_norm", "blk.1.ffn_norm.weight", "output_norm", "token_embd"])
def test_hook_names_mean_the_same_on_every_backend(tiny_model, step):
    ids = list(range(20))
    with LLM(tiny_model, ctx=64) as cpu, LLM(tiny_model, ctx=64, backend="reference") as reference:
        one, other = cpu.hidden(ids, step), reference.hidden(ids, step)
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)


def first_of_the_head(llm):
    steps = llm.engine.program.running_plan.steps
    return next(i for i, step in enumerate(steps) if "output_norm.weight" in (weight.name for weight in step.weights))


def test_unknown_step_error_suggests_near_names(llm):
    with pytest.raises(RequestError, match=r"unknown step 'blk.1.ffn_dwn'; did you mean one of .*blk\.1\.ffn_down"):
        llm.hidden([1], "blk.1.ffn_dwn")
    with pytest.raises(RequestError, match="step 99 does not exist; this plan has steps 0 to"):
        llm.hidden([1], 99)
    with pytest.raises(RequestError, match=r"'blk.0.attn_q' is fused on this backend: step 1 .* has 3 outputs"):
        llm.hidden([1], "blk.0.attn_q")
    with pytest.raises(RequestError, match=r"'blk.0.ffn_down' is fused on this backend.* only computes a later value"):
        llm.hidden([1], "blk.0.ffn_down")  # the sum with the residual is another thing: "blk.0"
    with pytest.raises(RequestError, match="step 1 is fused on this backend"):
        llm.hidden([1], 1)
    with pytest.raises(RequestError, match="an index, a weight or a layer"):
        llm.hidden([1], 1.5)


@pytest.mark.parametrize("step", ["blk.0", "blk.1"], ids=["all-rows", "wanted-rows"])
def test_hooks_read_every_token_once_and_change_nothing(llm, step):
    prompt = list(range(70))
    wanted = llm.generate(prompt, SEEDED)
    seen = []
    got = llm.generate(prompt, SEEDED, hooks={step: lambda positions, values: seen.append((positions, values))})
    assert got.token_ids == wanted.token_ids
    positions = np.concatenate([p for p, _ in seen])
    np.testing.assert_array_equal(positions, np.arange(70 + 15 - 1))
    everything = [*prompt, *got.token_ids[:-1]]
    np.testing.assert_array_equal(np.concatenate([v for _, v in seen]), llm.hidden(everything, step))


@pytest.mark.parametrize(
    "own",
    [
        {"params": SamplingParams(logits_processors=(crash,), max_tokens=5)},
        {"params": SamplingParams(custom_sampler=crash, max_tokens=5)},
        {"params": GREEDY, "hooks": {"blk.0": crash}},
    ],
    ids=["processor", "sampler", "hook"],
)
def test_exception_in_a_callback_fails_only_its_request(llm, own):
    with pytest.raises(CallbackError, match="my own mistake") as caught:
        llm.generate("x", **own)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(CallbackError, match="my own mistake"):
        list(llm.generate("x", **own, stream=True))
    pages = llm.engine.scheduler.pages
    assert pages.n_free == pages.n_pages


def test_completion_of_a_list_carries_its_error(llm):
    calls = []

    def late(ids, logits):
        calls.append(len(ids))
        if len(calls) == 4:
            crash()

    params = [GREEDY, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logits_processors=(late,)), GREEDY]
    good, failed, other = llm.generate(["a", "b", "c"], params)
    assert (good.error, other.error) == (None, None)
    assert good.finish_reason == other.finish_reason == "length"
    assert failed.finish_reason == "error"
    assert isinstance(failed.error, CallbackError)
    assert failed.token_ids == llm.generate("b", GREEDY).token_ids[:3]


def test_callback_that_calls_its_own_llm_gets_an_error(llm):
    with pytest.raises(CallbackError, match="cannot call its LLM"):
        llm.generate("x", SamplingParams(logits_processors=(lambda *_: llm.logits([1]),)))


def test_timeout_ends_a_request_with_its_partial_answer(llm, monkeypatch):
    clock, passed = time.monotonic, [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock() + sum(passed))
    calls = []

    def late(ids, logits):
        calls.append(ids)
        if len(calls) == 3:
            passed.append(2000.0)

    answer = llm.generate("x", SamplingParams(max_tokens=200, ignore_eos=True, logits_processors=(late,)), timeout=1000)
    assert (answer.finish_reason, answer.stop_reason) == ("cancelled", "timeout")
    assert len(answer.token_ids) == 3


def test_second_thread_is_served_while_the_first_generates(llm):
    """Whoever runs the steps does not keep others out until it is done."""
    order, is_served = [], threading.Event()

    def hold(ids, logits):
        is_served.wait(0.05)  # ten seconds for all tokens, unless the others are served before that

    def long():
        llm.generate([1, 2], SamplingParams(max_tokens=200, ignore_eos=True, temperature=0, logits_processors=(hold,)))
        order.append("long")

    thread = threading.Thread(target=long)
    thread.start()
    while not llm.engine.scheduler.running:
        time.sleep(0.001)
    for _ in range(3):
        llm.generate([3], SamplingParams(max_tokens=3, ignore_eos=True))
        assert llm.logits([3]).shape == (1, 320)
    order.append("short")
    is_served.set()
    thread.join()
    assert order == ["short", "long"]


def test_stream_closed_by_another_thread_ends(llm):
    slow = SamplingParams(max_tokens=200, ignore_eos=True, logits_processors=(lambda *_: time.sleep(0.05),))
    stream = llm.generate("x", slow, stream=True)
    chunks = [next(stream)]
    thread = threading.Thread(target=lambda: chunks.extend(stream))
    thread.start()
    stream.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(chunks) < 200


def test_grammars_are_checked_before_generation(llm):
    answer = llm.generate("x", SamplingParams(choice=("yes", "no"), seed=1))
    assert answer.text in ("yes", "no")
    assert answer.finish_reason == "stop"
    with pytest.raises(RequestError, match="regex"):
        llm.generate("x", SamplingParams(regex="(("))
    assert llm.engine.is_idle


def threads():
    return {path.name for path in Path("/proc/self/task").iterdir()}


def n_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads and files where Linux tells them")
def test_close_frees_threads_file_and_memory_even_with_an_open_stream(tmp_path):
    path = write_tiny(TINY["llama"], tmp_path / "own.gguf")
    gc.collect()
    before, n_before = threads(), n_files()
    llm = LLM(path, ctx=256, threads=2, speculation=path)
    stream = llm.generate("x", GREEDY, stream=True)
    next(stream)
    program, state = weakref.ref(llm.engine.program), weakref.ref(llm.engine.state)
    assert threads() - before
    assert path.name in Path("/proc/self/maps").read_text()
    llm.close()
    gc.collect()
    assert (program(), state()) == (None, None)
    end = time.monotonic() + 60
    while threads() - before and time.monotonic() < end:  # the system may list a joined thread for a moment
        time.sleep(0.001)
    assert not threads() - before and n_files() <= n_before  # what another test left may have gone meanwhile
    assert path.name not in Path("/proc/self/maps").read_text()
    assert next(chunk.finish_reason for chunk in stream if chunk.finish_reason) in ("cancelled", "length")
    stream.close()
    for call in (lambda: llm.score("x"), lambda: llm.logits([1]), lambda: llm.generate(["x"], GREEDY)):
        with pytest.raises(RequestError, match="was closed"):
            call()


def test_request_of_another_thread_is_cancelled_by_close(tiny_model):
    llm = LLM(tiny_model, ctx=256)
    slow = SamplingParams(max_tokens=200, ignore_eos=True, logits_processors=(lambda *_: time.sleep(0.05),))
    answers = []
    thread = threading.Thread(target=lambda: answers.append(llm.generate("x", slow)))
    thread.start()
    while not llm.engine.scheduler.running:
        time.sleep(0.001)
    llm.close()
    thread.join(timeout=60)
    assert answers[0].finish_reason == "cancelled"


@pytest.mark.parametrize(("name", "value"), [("max_running", 0), ("chunk", 0), ("kv_tokens", 100), ("kv_tokens", 1.5)])
def test_options_out_of_range_are_rejected_by_name(tiny_model, name, value):
    with pytest.raises(RequestError, match=f"^{name} is "):
        LLM(tiny_model, ctx=256, **{name: value})


def test_options_without_effect_are_rejected_by_name(llm):
    with pytest.raises(RequestError, match="progress"):
        llm.generate("x", GREEDY, stream=True, progress=True)
    for name in ("tools", "documents", "messages"):
        with pytest.raises(RequestError, match=f"variables contains '{name}'"):
            llm.chat([{"role": "user", "content": "x"}], GREEDY, variables={name: []})


def test_no_prompts_give_no_completions(llm):
    assert llm.generate([], GREEDY) == []


def test_numpy_numbers_are_accepted_as_timeout_and_priority(llm):
    assert llm.generate("x", GREEDY, timeout=np.float32(60), priority=np.int64(2)).finish_reason == "length"
