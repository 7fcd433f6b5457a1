"""Resuming: an answer that was cut off at any token goes on exactly, or is refused; it is never spliced."""

from dataclasses import replace

import pytest

from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import write_tiny
from woolly import LLM, RequestError, SamplingParams

LONG = SamplingParams(temperature=0.9, seed=5, max_tokens=60, ignore_eos=True)
KINDS = {
    "greedy": replace(LONG, temperature=0),
    "drawn": LONG,
    "mirostat": replace(LONG, mirostat=2),
    "penalties": replace(LONG, repeat_penalty=1.3, dry_multiplier=0.8, presence_penalty=0.5),
    "schema": replace(LONG, regex="[a-z]{50}", ignore_eos=False),
    "stop": replace(LONG, stop=("e",), max_tokens=200),
}
PROMPT = "Once upon a time there was a sheep"


@pytest.mark.parametrize("kind", KINDS)
def test_answer_resumes_from_any_token(kind, tiny_llm):
    params = KINDS[kind]
    whole = tiny_llm.generate(PROMPT, params)
    for n in {1, 2, len(whole.token_ids) // 2, len(whole.token_ids)}:
        again = tiny_llm.generate(PROMPT, params, replay_tokens=whole.token_ids[:n])
        assert (again.token_ids, again.text, again.finish_reason) == (whole.token_ids, whole.text, whole.finish_reason)


def test_forced_tokens_are_replayed_in_few_steps_and_are_not_drafts(tiny_llm):
    whole = tiny_llm.generate(PROMPT, LONG)
    before = tiny_llm.engine.n_steps
    (request,) = tiny_llm.prepare(PROMPT, LONG, replay_tokens=whole.token_ids[:50])[0]
    tiny_llm.driver.complete([[request]])
    assert tuple(request.output) == tuple(whole.token_ids)
    assert tiny_llm.engine.n_steps - before <= 13
    assert request.n_drafted == 0


def test_chat_and_stream_resume_too(tiny_llm):
    whole = tiny_llm.generate(PROMPT, LONG)
    streamed = tiny_llm.generate(PROMPT, LONG, replay_tokens=whole.token_ids[:20], stream=True)
    assert "".join(chunk.text for chunk in streamed) == whole.text
    _, (request,) = tiny_llm.prepare_chat("hi", LONG)
    tiny_llm.driver.complete([[request]])
    assert tiny_llm.chat("hi", LONG, replay_tokens=request.output[:7]).token_ids == tuple(request.output)


def test_differing_token_ends_the_answer_with_an_error(tiny_llm):
    whole = tiny_llm.generate(PROMPT, LONG)
    wrong = [*whole.token_ids[:10], (whole.token_ids[10] + 1) % 256, *whole.token_ids[11:20]]
    with pytest.raises(RequestError, match=r"token 10 is .*, but replay_tokens has") as caught:
        tiny_llm.generate(PROMPT, LONG, replay_tokens=wrong)
    assert caught.value.code == "not_resumed"
    assert tiny_llm.generate(PROMPT, LONG).text == whole.text


def test_recurrent_state_and_speculation_resume_alike(tmp_path):
    path = write_tiny(HYBRIDS["qwen35"], tmp_path / "hybrid.gguf")
    with LLM(path, ctx=256, threads=1, speculation="prompt_lookup") as llm:
        whole = llm.generate(PROMPT, LONG)
        for n in (3, 31, 40):
            assert llm.generate(PROMPT, LONG, replay_tokens=whole.token_ids[:n]).token_ids == whole.token_ids


@pytest.mark.parametrize(
    ("changed", "replay_tokens", "named"),
    [
        ({"seed": None}, [5], "seed"),
        ({"n": 2}, [5], "n is 2"),
        ({"context_shift": True}, [5], "context_shift"),
        ({"max_tokens": 2}, [5, 6, 7], "max_tokens is 2"),
        ({}, [-1], "not in the vocabulary"),
    ],
)
def test_unreplayable_request_is_rejected(changed, replay_tokens, named, tiny_llm):
    with pytest.raises(RequestError, match=named):
        tiny_llm.generate(PROMPT, replace(LONG, **changed), replay_tokens=replay_tokens)
