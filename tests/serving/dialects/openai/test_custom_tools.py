"""Tools of type custom in chat completions: free text in, free text out."""

import json

import pytest

from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.bodies import ChatBody

TALK = [{"role": "user", "content": "hi"}]
FORMAT = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "ab{2,4}"}}
PYTHON = {"type": "custom", "custom": {"name": "py", "description": "Run it.", "format": FORMAT}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
    },
}
ASK = {"messages": TALK, "tools": [PYTHON, WEATHER], "max_tokens": 300, "temperature": 0}


def choice_of(name, kind="custom"):
    return {"tool_choice": {"type": kind, kind: {"name": name}}}


def test_custom_call_has_its_input(client):
    reply = client.post("/v1/chat/completions", json={**ASK, **choice_of("py")}).json()
    (choice,) = reply["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["type"] == "custom" and "function" not in call
    assert call["custom"]["name"] == "py" and call["custom"]["input"] in ("abb", "abbb", "abbbb")


def test_stream_has_the_same_call(client):
    body = {**ASK, **choice_of("py")}
    (wanted,) = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["tool_calls"]
    text = client.post("/v1/chat/completions", json={**body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    calls = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [one["type"] for one in calls if "type" in one] == ["custom"] and calls[0]["id"]
    assert "".join(one["custom"].get("name", "") for one in calls) == "py"
    assert "".join(one["custom"]["input"] for one in calls) == wanted["custom"]["input"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_functions_beside_custom_tools_stay_functions(client):
    reply = client.post("/v1/chat/completions", json={**ASK, **choice_of("weather", "function")}).json()
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert call["type"] == "function" and json.loads(call["function"]["arguments"]) == {"city": "Rome"}


def test_earlier_custom_calls_are_read():
    call = {"id": "c1", "type": "custom", "custom": {"name": "py", "input": "1 + 1"}}
    messages = [
        *TALK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    read = ChatBody.model_validate({**ASK, "messages": messages}).to_chat(SamplingParams())
    assert json.loads(read.messages[1].calls[0].arguments) == {"input": "1 + 1"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tools": [{"type": "custom"}]}, "tools.0: missing `custom`"),
        ({"tools": [PYTHON, PYTHON]}, "tools.1.custom.name: two tools are named 'py'"),
        (choice_of("other"), "'other'"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "x"}]}]},
            "'function' or 'custom'",
        ),
    ],
)
def test_invalid_custom_tools_are_rejected(fields, says, client):
    reply = client.post("/v1/chat/completions", json={**ASK, **fields})
    assert reply.status_code == 400 and says in reply.json()["error"]["message"], reply.text


def test_lark_grammar_of_a_tool_is_shown_and_reported(client):
    lark = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}}
    tool = {"type": "custom", "custom": {"name": "py", "format": lark}}
    body = {**ASK, "tools": [tool], "max_tokens": 1, "verbose": True}
    reply = client.post("/v1/chat/completions", json=body)
    assert "the grammar is shown to the model, but not enforced" in reply.headers["x-woolly-ignored"]
