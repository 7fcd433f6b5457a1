"""Anthropic's own SDK against the server: its types read the replies, its accumulator the streams."""

import httpx
import pytest

from tests.cases.later import Later
from tests.clients.agents import CLAUDE_CODE_FIRST, CLAUDE_CODE_HEADERS, claude_code_second

anthropic = Later("anthropic")  # seven seconds
HI = [{"role": "user", "content": "hi"}]
PAINT = {
    "name": "paint",
    "description": "Paints.",
    "input_schema": {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}},
        "required": ["color"],
        "additionalProperties": False,
    },
}
RED = '<tool_call>\n{"name": "paint", "arguments": {"color": "red"}}\n</tool_call>'
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 40}  # no arguments of the newest SDK
FIELDS = {"model": "tiny", "max_tokens": 200, "messages": HI}


def connect(server):
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)


@pytest.fixture
def client(scripted):
    with connect(scripted) as client:
        yield client


def streamed(client, **fields):
    with client.messages.stream(**{**FIELDS, **fields}) as stream:
        return stream.get_final_message()


def both(client, **fields):
    """The reply as a whole, after a check that the stream gives the same."""
    message = client.messages.create(**{**FIELDS, **fields})
    anthropic.types.Message.model_validate(message.model_dump())
    other = streamed(client, **fields)
    assert shape(other) == shape(message)
    return message


def shape(message):
    blocks = [block.model_dump(exclude={"id", "parsed_output"}, exclude_none=True) for block in message.content]
    return blocks, message.stop_reason, message.stop_sequence, message.usage.output_tokens


def test_text(client, scripted):
    scripted.says("Hello there.")
    message = both(client, system="Be brief.", extra_body=SAMPLING)
    assert [block.text for block in message.content] == ["Hello there."]
    assert (message.stop_reason, message.model, message.role) == ("end_turn", "tiny", "assistant")
    assert message.id.startswith("msg_") and message.usage.output_tokens > 0


def test_tool_calls_and_thinking(client, scripted):
    scripted.says(f"<think>\nRed, I think.\n</think>\n\nYes.\n{RED}\n{RED}")
    message = both(client, tools=[PAINT], thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    thought, text, first, second = message.content
    assert (thought.thinking, text.text) == ("Red, I think.", "Yes.") and thought.signature
    assert (
        first.input == second.input == {"color": "red"} and first.id != second.id and message.stop_reason == "tool_use"
    )


def test_thinking_signature_restores_hidden_reasoning(client, scripted):
    scripted.says("<think>Secret sheep.</think>Done.")
    message = both(client, thinking={"type": "adaptive", "display": "omitted"})
    assert message.content[0].thinking == "" and message.content[1].text == "Done."
    answer = {"role": "assistant", "content": [block.model_dump() for block in message.content]}
    shown = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Secret sheep.", "signature": "x"},
            {"type": "text", "text": "Done."},
        ],
    }
    counts = [client.messages.count_tokens(model="tiny", messages=[*HI, one, *HI]) for one in (answer, shown)]
    assert counts[0].input_tokens == counts[1].input_tokens


# One call: the random model might write several until max_tokens cuts one off.
ONE_CALL = {"disable_parallel_tool_use": True}


@pytest.mark.parametrize("choice", [{"type": "any"} | ONE_CALL, {"type": "tool", "name": "paint"} | ONE_CALL])
def test_tool_choice_is_enforced_by_a_grammar(thoughtless, choice):
    with connect(thoughtless) as client:
        message = both(client, tools=[PAINT], tool_choice=choice)
    assert message.content[-1].input["color"] in ("red", "blue") and message.stop_reason == "tool_use"


def test_truncated_tool_call_is_valid_json(client, scripted):
    scripted.says(RED)
    for n in range(20, 70, 7):
        message = both(client, tools=[PAINT], max_tokens=n)
        assert message.stop_reason == "max_tokens"
        assert all(isinstance(block.input, dict) for block in message.content if block.type == "tool_use")


def test_stop_reasons(client, scripted):
    scripted.says("one two three")
    message = both(client, stop_sequences=["two"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")
    assert message.content[0].text == "one "
    assert both(client, max_tokens=3).stop_reason == "max_tokens"
    scripted.says(None)


def test_json_schema_is_enforced(thoughtless):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    with connect(thoughtless) as client:
        message = both(client, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert message.content[0].text.replace(" ", "").strip() in ('{"n":1}', '{"n":2}')


def test_assistant_prefill_is_continued(client):
    begun = {"role": "assistant", "content": "The answer"}
    counts = [
        client.messages.count_tokens(model="tiny", messages=messages).input_tokens
        for messages in (HI, [*HI, {"role": "user", "content": "The answer"}], [*HI, begun])
    ]
    assert counts[0] < counts[2] < counts[1]  # no end mark and no next turn
    client.messages.create(**{**FIELDS, "messages": [*HI, begun], "max_tokens": 2})


def test_count_tokens_matches_usage(client):
    fields = {"messages": HI, "system": "Be brief.", "tools": [PAINT]}
    count = client.messages.count_tokens(model="tiny", **fields).input_tokens
    usage = client.messages.create(model="tiny", max_tokens=1, **fields).usage
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == count


def test_errors_match_the_sdk(client):
    with pytest.raises(anthropic.BadRequestError, match="this model does not support images"):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        client.messages.create(**{**FIELDS, "messages": [{"role": "user", "content": [image]}]})
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**FIELDS, "messages": [{"role": "user", "content": "x" * 70000}]})
    assert caught.value.body["error"]["message"].startswith("prompt is too long: 70")
    assert caught.value.body["error"]["message"].endswith(" tokens > 65536 maximum")
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**FIELDS, "max_tokens": -1})


def test_models(client):
    (model,) = client.models.list()
    assert model == client.models.retrieve("tiny")
    assert (model.id, model.type, model.max_input_tokens) == ("tiny", "model", 65536)


def test_unknown_fields_and_names_are_accepted_with_a_warning(client):
    raw = client.messages.with_raw_response.create(
        **{**FIELDS, "model": "claude-sonnet-9", "max_tokens": 1},
        metadata={"user_id": "x"},
        extra_body={"compaction": {"on": True}, "cache_control": {"type": "ephemeral"}},
        extra_headers={"anthropic-beta": "nobody-knows-2099-01-01", "anthropic-version": "2099-01-01"},
    )
    reported = raw.headers["x-woolly-ignored"]
    assert "compaction" in reported and "claude-sonnet-9" in reported and "metadata" not in reported
    assert raw.parse().model == "tiny" and raw.headers["request-id"]


def test_claude_code_makes_two_turns(scripted):
    """The second finds the prompt of the first in the cache, though its first line and a form of its text differ."""
    scripted.says(
        '<think>Say hi.</think><tool_call>\n{"name": "Bash", "arguments": {"command": "echo hi"}}\n</tool_call>'
    )
    url = f"{scripted.url}/v1/messages?beta=true"
    first = read(httpx.post(url, json=CLAUDE_CODE_FIRST, headers=CLAUDE_CODE_HEADERS, timeout=300))
    assert [block["type"] for block in first["content"]] == ["thinking", "tool_use"]
    assert first["content"][1]["input"] == {"command": "echo hi"} and first["stop_reason"] == "tool_use"
    scripted.says("Done.")
    body = claude_code_second(first["content"])
    second = read(httpx.post(url, json=body, headers=CLAUDE_CODE_HEADERS, timeout=300))
    assert [block["text"] for block in second["content"]] == ["Done."] and second["stop_reason"] == "end_turn"
    usage = second["usage"]
    assert usage["cache_read_input_tokens"] > 0.9 * (usage["input_tokens"] + usage["cache_read_input_tokens"])


def read(reply):
    """The message of a stream, by the SDK's accumulator."""
    assert reply.status_code == 200, reply.text
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    message, buffers = None, {}
    for frame in reply.text.strip().split("\n\n"):
        name, data = frame.split("\n")
        event = (
            TypeAdapter(RawMessageStreamEvent).validate_json(data.removeprefix("data: "))
            if "ping" not in name
            else None
        )
        if event is not None:
            assert name == f"event: {event.type}"
            message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    assert event.type == "message_stop"
    return message.model_dump(exclude_none=True)


@pytest.mark.parametrize("ask", ["create", "stream"])
def test_max_tokens_zero_only_fills_the_cache(client, ask):
    talk = [{"role": "user", "content": f"{ask} " + "sheep " * 80}]
    fields = {**FIELDS, "messages": talk, "max_tokens": 0}
    message = client.messages.create(**fields) if ask == "create" else streamed(client, **fields)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    assert message.usage.cache_read_input_tokens == 0 < message.usage.input_tokens
    again = client.messages.create(**{**fields, "max_tokens": 2})
    assert again.usage.cache_read_input_tokens >= 64


def test_omitted_content_is_reported_complete_and_streamed(scripted):
    calls = [
        message
        for i in range(2)
        for message in (
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{i}", "name": "paint", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "red " * 99}]},
        )
    ]
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 1},
        "keep": {"type": "tool_uses", "value": 1},
    }
    body = {"model": "tiny", "messages": [*HI, *calls], "context_management": {"edits": [edit]}}
    with httpx.Client(base_url=scripted.url) as http:
        counted = http.post("/v1/messages/count_tokens", json=body).json()
        whole = http.post("/v1/messages", json={**body, "max_tokens": 2}).json()
        events = http.post("/v1/messages", json={**body, "max_tokens": 2, "stream": True}).text
        body["context_management"] = {"edits": [{"type": "compact_20260112"}]}
        refused = http.post("/v1/messages", json={**body, "max_tokens": 2})
    n_spared = counted["context_management"]["original_input_tokens"] - counted["input_tokens"]
    (fact,) = whole["context_management"]["applied_edits"]
    assert fact == {"type": edit["type"], "cleared_tool_uses": 1, "cleared_input_tokens": n_spared} and n_spared > 0
    assert whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"] == counted["input_tokens"]
    assert '"applied_edits"' in events
    assert refused.status_code == 400 and "context_management.edits" in refused.json()["error"]["message"]
