"""OpenAI's own SDK against the server: its types read the replies, its accumulator the streams."""

import json
import time

import httpx
import openai
import pytest

from tests.clients.test_ollama import HI, PAINT, RED


@pytest.fixture
def client(scripted):
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_stream_accumulates_to_the_complete_reply(client, scripted):
    scripted.says(f"<think>Hm.</think>Yes.\n{RED}\n{RED}")
    fields = {"model": "tiny", "messages": HI, "tools": [PAINT]}
    (whole,) = client.chat.completions.create(**fields).choices
    with client.chat.completions.stream(**fields) as stream:
        (streamed,) = stream.get_final_completion().choices
    assert whole.message.content == streamed.message.content == "Yes."
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"
    for choice in (whole, streamed):
        assert [call.function.arguments for call in choice.message.tool_calls] == ['{"color": "red"}'] * 2


def test_models_and_errors(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError, match="unknown model 'none'"):
        client.models.retrieve("none")


def test_any_model_name_is_answered_and_the_reply_names_the_model(client):
    raw = client.chat.completions.with_raw_response.create(model="gpt-4", messages=HI, max_tokens=1)
    assert raw.parse().model == "tiny" and "gpt-4" in raw.headers["x-woolly-ignored"]
    assert client.chat.completions.create(model="TINY:latest", messages=HI, max_tokens=1).model == "tiny"


def test_context_error_is_recognized_by_agents(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 65536 tokens") as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 70000}])
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"enable_thinking": True}, "[True]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "[True]"),
        ({"reasoning": {"effort": "high"}}, "[True]"),
        ({"reasoning_effort": "none"}, "[False]"),
        ({"reasoning": {"enabled": False}}, "[False]"),
        ({"thinking": {"type": "disabled"}}, "[False]"),
        ({"enable_thinking": False}, "[False]"),
    ],
)
def test_thinking_can_be_switched_by_any_alias(client, scripted, fields, shown):
    seen = []
    scripted.script = lambda layout: seen.append(layout.text) or "Hi."
    try:
        raw = client.chat.completions.with_raw_response.create(model="tiny", messages=HI, extra_body=fields)
    finally:
        scripted.script = None
    assert seen[0].partition("None")[0] == shown
    assert "x-woolly-ignored" not in raw.headers


def test_reasoning_has_both_names_and_a_tool_image_becomes_a_note(client, scripted):
    seen = []
    scripted.script = lambda layout: seen.append(layout.text) or "Hi."
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    talk = [
        *HI,
        {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}, image]},
    ]
    try:
        raw = client.chat.completions.with_raw_response.create(model="tiny", messages=talk)
    finally:
        scripted.script = None
    assert "<think>Hm.</think>" in seen[0] and "cannot see" in seen[0]
    assert raw.headers["x-woolly-ignored"] == "messages.content.image_url (the model reads a note)"
    with pytest.raises(openai.BadRequestError, match="image_url"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [image]}])


def test_wrong_content_type_is_rejected(scripted):
    body = '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}'
    kinds = {"": True, "application/json": True, "application/x-www-form-urlencoded": False, "text/plain": False}
    # llama-server's own path takes what its documented curl sends.
    for path, is_strict in {"/v1/chat/completions": True, "/chat/completions": False}.items():
        for kind, is_json in kinds.items():
            headers = {"content-type": kind} if kind else {}
            reply = httpx.post(scripted.url + path, content=body, headers=headers, timeout=60)
            assert reply.status_code == (415 if is_strict and not is_json else 200), (path, kind, reply.text)
    assert httpx.get(f"{scripted.url}/models").json()["data"][0]["id"] == "tiny"


def test_batch_is_uploaded_watched_and_read(client, scripted):
    scripted.says("Wool.")
    body = {"model": "tiny", "messages": HI, "max_tokens": 8}
    lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(2)]
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": 5}})
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("rows.jsonl", data), purpose="batch")
    assert client.files.retrieve(file.id).bytes == len(data) and client.files.content(file.id).content == data
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a test"}
    )
    while batch.status not in ("completed", "failed"):
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1) and batch.metadata == {
        "of": "a test"
    }
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in found]
    assert [line["custom_id"] for line in found] == ["r0", "r1"] and texts == ["Wool."] * 2
    assert "bad" in client.files.content(batch.error_file_id).text
    assert [one.id for one in client.batches.list()] == [batch.id]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
