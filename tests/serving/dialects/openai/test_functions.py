"""OpenAI's older words for tools, and roles that a template has of its own."""

import json

import pytest

from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.bodies import ChatBody

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
}
TALK = [{"role": "user", "content": "hi"}]
ASK = {"messages": TALK, "functions": [WEATHER], "max_tokens": 300, "temperature": 0}


def test_required_function_call_in_the_legacy_format(client):
    body = {**ASK, "function_call": {"name": "weather"}}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    call = choice["message"]["function_call"]
    assert call["name"] == "weather" and json.loads(call["arguments"]) == {"city": "Rome"}
    text = client.post("/v1/chat/completions", json={**body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"].get("function_call", {}) for chunk in chunks]
    assert "".join(one.get("name", "") for one in deltas) == "weather"
    assert json.loads("".join(one.get("arguments", "") for one in deltas)) == {"city": "Rome"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


def test_legacy_call_and_result_are_read():
    messages = [
        *TALK,
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    chat = ChatBody.model_validate({**ASK, "messages": messages}).to_chat(SamplingParams())
    _, answer, result = chat.messages
    assert answer.calls[0].name == "weather"
    assert (result.role, result.name, result.text) == ("tool", "weather", "sunny")
    assert result.call_id == answer.calls[0].id and chat.tools.mode == "auto" and not chat.tools.is_parallel


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"function_call": "required"}, "function_call"),
        ({"function_call": {"name": "other"}}, "'other'"),
        ({"functions": None, "function_call": {"name": "x"}}, "needs at least one function"),
        ({"tools": [{"type": "function", "function": WEATHER}]}, "functions"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.name"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "'robot'"),
    ],
)
def test_contradictory_fields_are_rejected(client, fields, says):
    reply = client.post("/v1/chat/completions", json=ASK | fields)
    assert reply.status_code == 400 and says in reply.json()["error"]["message"], reply.text


def test_role_named_by_the_template_is_rendered(app_with):
    source = "{% for m in messages %}{{ ('R:' if m.role == 'critic' else 'U:') + m.content }}{% endfor %}"
    with app_with(chat_template=source, verbose=True) as client:
        messages = [{"role": "critic", "content": "bad"}, *TALK]
        reply = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert reply.json()["__verbose"]["prompt"] == "R:badU:hi"


def test_tool_without_its_function_is_rejected(client):
    for tool, says in (
        ({"type": "function"}, "tools.0: missing `function`; expected an object with a name"),
        ({"type": "function", "name": "weather"}, "tools.0: missing `function`"),
        ({"type": "web_search"}, "tools.0: unsupported type 'web_search'; use 'function' with a function"),
    ):
        reply = client.post("/v1/chat/completions", json={"messages": TALK, "tools": [tool]})
        assert reply.status_code == 400 and reply.json()["error"]["message"].startswith(says)
