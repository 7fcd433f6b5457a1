"""OpenAI's own SDK against /v1/responses: its types read the replies, its state machine the streams."""

import json
import re
import threading
from dataclasses import replace

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.clients.test_ollama import RED

PAINT = {
    "type": "function",
    "name": "paint",
    "description": "Paints.",
    "parameters": {
        "type": "object",
        "properties": {"color": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["color"],
        "additionalProperties": False,
    },
}
EVENTS = TypeAdapter(ResponseStreamEvent)
FIELDS = {"model": "tiny", "input": "hi"}


def connect(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


@pytest.fixture
def client(scripted):
    with connect(scripted) as client:
        yield client


def events_of(text):
    """The events of a stream, each of them as the SDK's types have it."""
    found = []
    for frame in text.strip().split("\n\n"):
        name, data = frame.split("\n")
        event = EVENTS.validate_json(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
        found.append(event)
    assert [event.sequence_number for event in found] == list(range(len(found)))
    return found


def both(client, **fields):
    """The whole reply, after a check that the SDK's state machine makes the same of the stream."""
    fields = {**FIELDS, **fields}
    whole = client.responses.create(**fields)
    Response.model_validate(whole.model_dump())
    with client.responses.stream(**fields) as stream:
        streamed = stream.get_final_response()
    assert shape(streamed) == shape(whole)
    return whole


def shape(response):
    unlike = {"id", "call_id", "parsed_arguments"}
    items = [item.model_dump(exclude=unlike, exclude_none=True) for item in response.output]
    for item in items:
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return items, response.status, response.usage.output_tokens


def test_text(client, scripted):
    scripted.says("Hello there.")
    response = both(client, instructions="Be brief.", temperature=0.5, max_output_tokens=100, metadata={"a": "b"})
    assert (response.output_text, response.status, response.model) == ("Hello there.", "completed", "tiny")
    assert response.metadata == {"a": "b"} and response.instructions == "Be brief." and response.store
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_reasoning_and_tool_calls(client, scripted):
    scripted.says(f"<think>Red, I think.</think>Yes.\n{RED}\n{RED}")
    response = both(client, tools=[PAINT], reasoning={"effort": "medium"})
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    thought, _, first, second = response.output
    assert [part.text for part in thought.content] == ["Red, I think."] and thought.summary == []
    assert first.arguments == second.arguments == '{"color": "red"}' and first.call_id != second.call_id
    assert 0 < response.usage.output_tokens_details.reasoning_tokens <= len("Red, I think.")
    asked = both(client, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"])
    assert [part.text for part in asked.output[0].summary] == ["Red, I think."]
    assert asked.output[0].encrypted_content and not asked.output[0].content


def test_encrypted_reasoning_round_trips(client, scripted):
    scripted.says("<think>Secret sheep.</think>Done.")
    sealed = client.responses.create(**FIELDS, include=["reasoning.encrypted_content"], store=False).output[0]
    plain = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [sealed.content[0].model_dump()]}
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed.encrypted_content}
    counts = []
    for thought in (plain, hidden, None):
        talk = [{"role": "user", "content": "hi"}, thought, {"role": "assistant", "content": "Done."}]
        items = [*(item for item in talk if item), {"role": "user", "content": "more"}]
        counts.append(client.responses.input_tokens.count(model="tiny", input=items).input_tokens)
    assert counts[0] == counts[1] > counts[2]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "paint"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "paint"}]},
    ],
)
def test_tool_choice_is_enforced_by_a_grammar(thoughtless, choice):
    with connect(thoughtless) as client:
        (call,) = both(client, tools=[PAINT], tool_choice=choice, parallel_tool_calls=False).output
    assert json.loads(call.arguments)["color"] in ("red", "blue")


def test_json_schema_is_enforced(thoughtless):
    class Number(BaseModel):
        n: bool

    with connect(thoughtless) as client:
        response = client.responses.parse(**FIELDS, text_format=Number)
        assert isinstance(response.output_parsed, Number)
        with client.responses.stream(**FIELDS, text_format=Number) as stream:
            assert stream.get_final_response().output_parsed == response.output_parsed


def test_namespaces_and_custom_tools_are_echoed(client, scripted):
    tools = [
        {"type": "namespace", "name": "farm", "description": "Farm.", "tools": [PAINT]},
        {
            "type": "custom",
            "name": "patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"},
        },
        {"type": "web_search", "external_web_access": True},
    ]
    scripted.says(
        RED.replace('"paint"', '"farm.paint"')
        + '\n<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>'
    )
    raw = client.responses.with_raw_response.create(**FIELDS, tools=tools)
    called, patched = raw.parse().output
    assert (called.namespace, called.name, called.arguments) == ("farm", "paint", '{"color": "red"}')
    assert (patched.type, patched.name, patched.input) == ("custom_tool_call", "patch", "a\nb")
    assert "web_search" in raw.headers["x-woolly-ignored"] and "tools.1.format" in raw.headers["x-woolly-ignored"]
    assert shape(both(client, tools=tools))[0][1]["input"] == "a\nb"
    scripted.says("Done.")
    results = [
        {"type": "function_call_output", "call_id": called.call_id, "output": "painted"},
        {
            "type": "custom_tool_call_output",
            "call_id": patched.call_id,
            "output": [{"type": "input_text", "text": "x"}],
        },
    ]
    asked = [{"role": "user", "content": "hi"}, called.model_dump(), patched.model_dump(), *results]
    assert both(client, input=asked, tools=tools).output_text == "Done."


def test_stored_response_is_continued_fetched_and_deleted(client, scripted):
    scripted.says("One.")
    first = client.responses.create(**FIELDS, instructions="Be brief.")
    second = both(client, input="and then?", previous_response_id=first.id)
    sent = [{"role": "user", "content": "hi"}, first.output[0].model_dump(), {"role": "user", "content": "and then?"}]
    assert client.responses.input_tokens.count(model="tiny", input=sent).input_tokens == second.usage.input_tokens
    assert client.responses.retrieve(first.id) == first
    (item,) = client.responses.input_items.list(second.id).data
    assert item.content[0].text == "and then?"
    referred = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "x"}]
    for _ in range(2):  # the second finds the item that the first one referred to
        third = client.responses.create(**{**FIELDS, "input": referred})
    plain = [first.output[0].model_dump(), {"role": "user", "content": "x"}]
    n_input = client.responses.input_tokens.count(model="tiny", input=plain).input_tokens
    assert third.usage.input_tokens == n_input
    fourth = client.responses.create(**{**FIELDS, "input": "y"}, previous_response_id=third.id)
    more = [*plain, third.output[0].model_dump(), {"role": "user", "content": "y"}]
    n_input = client.responses.input_tokens.count(model="tiny", input=more).input_tokens
    assert fourth.usage.input_tokens == n_input
    client.responses.delete(first.id)
    for gone in (lambda: client.responses.retrieve(first.id), lambda: client.responses.cancel(first.id)):
        with pytest.raises(openai.NotFoundError):
            gone()
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**FIELDS, previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found"
    unkept = client.responses.create(**FIELDS, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_running_response_can_be_cancelled(client, scripted):
    scripted.says("x" * 5000)
    stream = client.responses.create(**FIELDS, stream=True)
    seen = [next(stream) for _ in range(8)]
    event_id = seen[0].response.id
    assert client.responses.retrieve(event_id).status == "in_progress"
    assert client.responses.cancel(event_id).status == "cancelled"
    seen += stream
    assert (seen[-1].type, seen[-1].response.status) == ("response.failed", "cancelled")
    assert client.responses.retrieve(event_id).output[0].status == "incomplete"
    with pytest.raises(openai.BadRequestError, match="the response is cancelled; only running"):
        client.responses.cancel(event_id)


def test_finish_reasons(client, scripted, thoughtless):
    scripted.says("one two three")
    cut = client.responses.create(**FIELDS, max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    *_, last = client.responses.create(**FIELDS, max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete" and last.response.output[0].status == "incomplete"
    generator = scripted.app.state.generator
    kept = generator._defaults
    generator._defaults = replace(kept, max_tokens=3)  # as --n-predict sets it
    try:
        *_, last = client.responses.create(**FIELDS, stream=True)
    finally:
        generator._defaults = kept
    assert last.type == "response.incomplete"


@pytest.mark.parametrize(("length", "says"), [(100, "context is full"), (700, "context")])
def test_full_context_error_is_recognized_by_codex(small, length, says):
    small.says("x" * 600)
    body = {**FIELDS, "input": "x" * length, "stream": True}
    reply = httpx.post(f"{small.url}/v1/responses", json=body, timeout=60)
    assert reply.status_code == 200
    events = events_of(re.sub('"code":"context_length_exceeded"', '"code":"server_error"', reply.text))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.failed" and says in events[-1].response.error.message
    assert '"code":"context_length_exceeded"' in reply.text.rsplit("event: ", 1)[1]


def test_every_event_is_known_to_the_sdk(client, scripted):
    scripted.says(f"<think>Hm.</think>Yes.\n{RED}")
    body = {**FIELDS, "stream": True, "tools": [PAINT], "top_logprobs": 2}
    events = events_of(httpx.post(f"{scripted.url}/responses", json=body, timeout=60).text)
    assert events[-1].type == "response.completed"
    assert all(one.logprobs[0].top_logprobs for one in events if one.type == "response.output_text.delta")


def test_concurrent_requests_do_not_mix(client, scripted):
    scripted.says("Same.")
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(both(client).output_text)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["Same."] * 4


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": [{"type": "message"}]}, "input.0.role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "does not support images",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "call_id"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name"),
        ({"tools": [PAINT, PAINT]}, "two tools are named 'paint'"),
        ({"tool_choice": "required"}, "at least one callable tool"),
        ({"tool_choice": {"type": "function", "name": "paint"}}, "unknown tool"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_unsupported_requests_are_rejected_by_name(client, fields, says):
    with pytest.raises(openai.BadRequestError, match=re.escape(says)):
        client.responses.create(**{**FIELDS, **fields})


def test_unknown_fields_are_accepted_with_a_warning(client, scripted):
    scripted.says("Hi.")
    more = {"client_metadata": {"a": "b"}, "nobody_knows": 1, "prompt_cache_key": "k"}
    result = [{"type": "input_image", "image_url": "data:"}, {"type": "input_text", "text": "seen"}]
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "extra": 1},
        {"type": "function_call_output", "call_id": "c", "output": result},
        {"type": "web_search_call", "id": "ws_1"},
    ]
    raw = client.responses.with_raw_response.create(model="tiny", input=items, extra_body=more)
    reported = raw.headers["x-woolly-ignored"]
    assert "nobody_knows" in reported and "input_image" in reported and "web_search_call" in reported
    assert "client_metadata" not in reported and raw.parse().output_text == "Hi."
