"""The official client chats with a real server."""

import asyncio
import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from woolly.serving.dialects.completions.replies import ChatReply

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 12}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "The time of day."}}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(client, server):
    def ask(messages=QUESTION, **fields):
        return client.chat.completions.create(model=server.name, messages=messages, **{**GREEDY, **fields})

    return ask


def test_reply_has_the_openai_format(ask, server):
    reply = ask()
    assert reply.id.startswith("chatcmpl-")
    assert reply.object == "chat.completion"
    assert reply.model == server.name
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    usage = reply.usage
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.timings["predicted_n"] == 12


def test_replies_validate_against_the_api(server):
    with server.client() as client:
        for fields in ({}, {"logprobs": True, "top_logprobs": 2}, {"tools": [WEATHER], "tool_choice": "required"}):
            reply = client.post("/v1/chat/completions", json={"messages": QUESTION, **GREEDY, **fields})
            ChatReply.model_validate(reply.json(), strict=True)


def test_stream_gives_the_same_text_and_ends_with_usage(ask):
    whole = ask()
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    *chunks, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_events_end_with_done(server):
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 2, "stream": True})
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = reply.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        for event in events[:-2]:
            assert event.startswith("data: {")
            assert "usage" not in json.loads(event[6:])


def test_async_client_streams_many_concurrently(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(text):
                stream = await client.chat.completions.create(
                    model=server.name, messages=[{"role": "user", "content": text}], stream=True, **GREEDY
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            together = await asyncio.gather(*map(one, "abcd"))
            assert together == [await one(text) for text in "abcd"]

    asyncio.run(main())


def test_several_answers_differ_and_a_seed_repeats_them(ask):
    replies = [ask(n=3, seed=7, temperature=1.5, max_tokens=8) for _ in range(2)]
    first, second = ([choice.message.content for choice in reply.choices] for reply in replies)
    assert first == second
    assert len(set(first)) == 3
    assert [choice.index for choice in replies[0].choices] == [0, 1, 2]
    texts = ["", "", ""]
    for chunk in ask(n=3, seed=7, temperature=1.5, max_tokens=8, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == first


def test_seeds_of_64_bits_and_minus_one_are_accepted(ask):
    huge = [ask(seed=2**62 + 5, temperature=2, max_tokens=6).choices[0].message.content for _ in range(2)]
    assert huge[0] == huge[1]
    assert ask(seed=-1, max_tokens=1).choices


def test_stop_strings_end_an_answer_and_are_not_shown(ask):
    whole = ask().choices[0].message.content
    stop = whole[5:8]
    for value in (stop, [stop, "never"]):
        choice = ask(stop=value).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.content == whole[: whole.index(stop)]
    assert ask(stop=None).choices[0].message.content == whole


def test_logprobs_have_exact_bytes_and_cover_the_text(ask):
    choice = ask([{"role": "user", "content": "Say: naïve 🦙"}], logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    data = b"".join(bytes(token.bytes) for token in tokens)
    assert data.decode("utf-8", "replace") == choice.message.content
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob, "a temperature of 0 takes the likeliest"
        assert token.top_logprobs[0].token == token.token


def test_logprobs_stream_with_their_text(ask):
    whole = ask(logprobs=True, top_logprobs=1, stop=["Paris", " la"]).choices[0]
    tokens = []
    for chunk in ask(logprobs=True, top_logprobs=1, stop=["Paris", " la"], stream=True):
        if chunk.choices[0].logprobs is not None:
            tokens += chunk.choices[0].logprobs.content
    assert tokens == whole.logprobs.content
    assert b"".join(bytes(t.bytes) for t in tokens).decode().startswith(whole.message.content)


def test_logit_bias_and_penalties_reach_the_sampler(ask, server):
    with server.client() as client:
        (token,) = client.post("/tokenize", json={"content": " Rome", "add_special": False}).json()["tokens"][:1]
    assert ask(max_tokens=3, logit_bias={str(token): 100}).choices[0].message.content == " Rome" * 3
    for penalty in ({"frequency_penalty": 100}, {"presence_penalty": 100}):
        text = ask(max_tokens=3, logit_bias={str(token): 100}, **penalty).choices[0].message.content
        assert text.startswith(" Rome")
        assert " Rome Rome" not in text


def test_extensions_have_llama_server_names(ask):
    text = ask(temperature=2, seed=1, extra_body={"top_k": 1}).choices[0].message.content
    assert text == ask().choices[0].message.content
    assert ask(extra_body={"grammar": 'root ::= "yes" | "no"'}).choices[0].message.content in ("yes", "no")
    chunks = list(ask(stream=True, extra_body={"timings_per_token": True}))
    assert all(chunk.timings["prompt_n"] >= 0 for chunk in chunks[1:]) and not hasattr(chunks[0], "timings")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_required_call_has_valid_arguments(ask, choice):
    tools = [WEATHER] if choice == "required" else [CLOCK, WEATHER]
    asked = {"tools": tools, "tool_choice": choice, "max_tokens": 60}
    reply = ask([{"role": "user", "content": "How warm is it in Rome?"}], **asked).choices[0]
    assert reply.finish_reason == "tool_calls"
    assert reply.message.content is None
    call = reply.message.tool_calls[0]
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}

    parts = {}
    finish = None
    for chunk in ask([{"role": "user", "content": "How warm is it in Rome?"}], **asked, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or ():
            part = parts.setdefault(delta.index, {"name": "", "arguments": ""})
            part["name"] += delta.function.name or ""
            part["arguments"] += delta.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "tool_calls"
    assert parts[0] == {"name": "get_weather", "arguments": call.function.arguments}


def test_conversation_with_calls_and_results_continues(ask):
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "the time?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answer = ask(messages, tools=[CLOCK]).choices[0].message
    assert answer.content or answer.tool_calls
    assert ask(messages, tools=[CLOCK], tool_choice="none").choices[0].message.tool_calls is None
    assert ask(messages).choices[0].message.content


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    is_tall: bool
    age: Literal["young", "old"]


def test_structured_output_with_the_client_parser(client, server):
    reply = client.chat.completions.parse(
        model=server.name,
        messages=[{"role": "user", "content": "Describe a person."}],
        response_format=Person,
        max_tokens=60,
        temperature=0,
    )
    assert isinstance(reply.choices[0].message.parsed, Person)


def test_strict_tools_of_the_client_parser_are_enforced(client, server):
    reply = client.chat.completions.parse(
        model=server.name,
        messages=[{"role": "user", "content": "Describe a person."}],
        tools=[openai.pydantic_function_tool(Person)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
        temperature=0,
    )
    (call,) = reply.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Person)


def test_json_mode_gives_json(ask):
    reply = ask(response_format={"type": "json_object"}, max_tokens=200).choices[0]
    if reply.finish_reason == "stop":
        assert isinstance(json.loads(reply.message.content), dict)
    assert reply.message.content.lstrip().startswith("{")
    assert ask(response_format={"type": "text"}).choices[0].message.content == ask().choices[0].message.content


def test_fields_clients_always_send_are_harmless(ask):
    harmless = {
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "verbosity": "medium",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "prediction": {"type": "content", "content": "x"},
        "logprobs": False,
        "stop": None,
    }
    assert ask(**harmless).choices[0].message.content == ask().choices[0].message.content


REFUSED = {
    "audio": {"voice": "alloy", "format": "wav"},
    "web_search_options": {},
    "functions": [{"name": "a b"}],
    "function_call": {"name": "nobody"},
    "modalities": ["text", "audio"],
    "top_logprobs": 3,
    "n": 0,
    "max_completion_tokens": 13,
    "stream_options": {"include_usage": True},
    "tool_choice": "required",
    "temperature": "hot",
    "top_p": 2,
    "format": "json",
    "tools": [{"type": "web_search", "name": "x"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}},
    "logit_bias": {"99999999": 1},
    "max_tokens": 0,
}


@pytest.mark.parametrize("field", REFUSED)
def test_unsupported_fields_are_rejected_by_name(field, server):
    with server.client() as client:
        body = {"messages": QUESTION, "max_tokens": 2, field: REFUSED[field]}
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert field in error["message"]
    assert error["param"] is None or error["param"].startswith(field)


MESSAGES = {
    "messages.0.content.0": {"role": "user", "content": [{"type": "hologram", "hologram": {"url": "x"}}]},
    "messages.0.content.0.input_audio": {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "x"}}],
    },
    "messages.0.content.0.image_url": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    "messages.0.content.0.text": {"role": "user", "content": [{"type": "text"}]},
    "messages.0.content": {"role": "user"},
    "messages.0.tool_call_id": {"role": "tool", "content": "x"},
    "messages.0.name": {"role": "function", "content": "x"},
    "messages.0.tool_calls": {
        "role": "user",
        "content": "x",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
}


@pytest.mark.parametrize("param", MESSAGES)
def test_unrenderable_message_error_names_its_place(param, server):
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json={"messages": [MESSAGES[param]], "max_tokens": 2})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_disconnected_client_cancels_its_request(server):
    with server.client() as client:
        body = {"messages": QUESTION, "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            next(reply.iter_lines())
        for _ in range(200):
            gauges = client.get("/metrics").text
            if "woolly_answers_open 0" in gauges:
                break
        assert "woolly_answers_open 0" in gauges
