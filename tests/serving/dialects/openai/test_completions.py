"""The official client continues texts, and scores them, with a real server."""

import math

import openai
import pytest

from woolly import LLM
from woolly.serving.dialects.completions.replies import CompletionReply

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(client, server):
    def ask(prompt=PROMPT, **fields):
        return client.completions.create(model=server.name, prompt=prompt, **{**GREEDY, **fields})

    return ask


@pytest.fixture(scope="module")
def llm(smollm2):
    with LLM(smollm2, ctx=512) as llm:
        yield llm


def test_reply_has_the_openai_format(ask, server):
    reply = ask()
    assert reply.id.startswith("cmpl-")
    assert reply.object == "text_completion"
    assert reply.choices[0].text.startswith(" Paris")
    assert reply.choices[0].logprobs is None
    assert reply.usage.completion_tokens == 6
    with server.client() as http:
        raw = http.post("/v1/completions", json={"prompt": PROMPT, "logprobs": 2, "echo": True, **GREEDY}).json()
    CompletionReply.model_validate(raw, strict=True)


def test_prompts_may_be_several_and_may_be_ids(ask, llm):
    one, two = ask().choices[0].text, ask("Two and two").choices[0].text
    assert [choice.text for choice in ask([PROMPT, "Two and two"]).choices] == [one, two]
    ids = [llm.tokenize(PROMPT), llm.tokenize("Two and two")]
    assert ask(ids[0]).choices[0].text == one
    reply = ask(ids, n=2)
    assert [choice.text for choice in reply.choices] == [one, one, two, two]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage.prompt_tokens == len(ids[0]) + len(ids[1])
    assert reply.usage.completion_tokens == 24


def test_stream_gives_the_same_texts(ask):
    whole = ask([PROMPT, "Two and two"], n=2, logprobs=2, echo=True)
    texts, tokens, reasons = [""] * 4, [[] for _ in range(4)], [None] * 4
    *chunks, last = ask(
        [PROMPT, "Two and two"], n=2, logprobs=2, echo=True, stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        tokens[choice.index] += zip(
            choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.text_offset, strict=True
        )
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == ["length"] * 4
    for got, choice in zip(tokens, whole.choices, strict=True):
        wanted = choice.logprobs
        assert got == list(zip(wanted.tokens, wanted.token_logprobs, wanted.text_offset, strict=True))
    assert last.choices == []
    assert last.usage.total_tokens == whole.usage.total_tokens


def test_echo_scores_a_prompt_without_generating(ask, llm):
    reply = ask(max_tokens=0, echo=True, logprobs=1)
    (choice,) = reply.choices
    assert choice.text == PROMPT
    assert reply.usage.completion_tokens == 0
    score = llm.score(PROMPT)
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(score.logprobs[1:], abs=1e-12)
    assert "".join(choice.logprobs.tokens) == PROMPT
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert PROMPT[offset : offset + len(token)] == token


def test_chosen_token_is_among_the_alternatives(ask):
    logprobs = ask(PROMPT, max_tokens=3, echo=True, logprobs=2).choices[0].logprobs
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        if logprob is not None:
            assert top[token] == logprob
            assert 2 <= len(top) <= 3
            assert math.fsum(map(math.exp, top.values())) <= 1 + 1e-9
    assert ask(logprobs=0).choices[0].logprobs.top_logprobs[0].keys() == {" Paris"}


def test_partial_utf8_tokens_are_reported_by_their_bytes(ask):
    text = "🦙𓂀"
    logprobs = ask(text, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs
    assert any(token.startswith("bytes:\\x") for token in logprobs.tokens)
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    assert max(logprobs.text_offset) < len(text)


def test_end_token_counts_when_a_text_is_scored(ask, llm):
    """lm-evaluation-harness asks for one token, and takes the last one off what it gets, whatever that is."""
    ending = {"max_tokens": 1, "logprobs": 1, "logit_bias": {str(min(llm.tokenizer.stop_ids)): 100}}
    choice = ask(echo=True, **ending).choices[0]
    assert (choice.text, choice.finish_reason) == (PROMPT, "stop")
    scored = choice.logprobs.token_logprobs
    assert len(scored) == len(llm.tokenize(PROMPT)) + 1
    assert scored[1:-1] == pytest.approx(llm.score(PROMPT).logprobs[1:], abs=1e-12)
    assert ask(**ending).choices[0].logprobs.tokens == []


def test_ids_are_echoed_as_their_text(ask, llm):
    choice = ask(llm.tokenize(PROMPT), echo=True).choices[0]
    assert choice.text == PROMPT + ask().choices[0].text


REFUSED = {
    "best_of": 3,
    "suffix": "!",
    "logprobs": 21,
    "max_tokens": 0,
    "n": 1000,
    "prompt": [],
    "stream_options": {},
    "top_p": -1,
    "grammar": "nonsense",
    "tools": [{"type": "function"}],
}


@pytest.mark.parametrize("field", REFUSED)
def test_unsupported_fields_are_rejected_by_name(field, server):
    with server.client() as client:
        reply = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, field: REFUSED[field]})
    assert reply.status_code == 400, reply.text
    assert field in reply.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [None, 5, [[]], [["a"]], [1, "a"], [[1], "a"], [-1], [10**9], {}])
def test_invalid_prompts_are_rejected(prompt, server):
    with server.client() as client:
        reply = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
    assert reply.status_code == 400, reply.text


def test_harmless_values_of_unsupported_fields_are_accepted(ask):
    assert ask(best_of=1, suffix="", user="me", stop=None).choices[0].text == ask().choices[0].text


def test_models_are_listed_and_found(client, server):
    listed = client.models.list().data
    assert server.name in [model.id for model in listed]
    model = client.models.retrieve(server.name)
    assert (model.object, model.owned_by) == ("model", "woolly")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nonesuch")
    assert caught.value.code == "model_not_found"
