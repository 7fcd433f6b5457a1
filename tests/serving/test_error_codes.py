"""Statuses, codes and params of bad requests. They depend on the fields of an error, never on its sentence."""

import pytest

from tests.cases.errors import drop_sentences

CHAT, TEXT, LLAMA, OLE = "/v1/chat/completions", "/v1/completions", "/completion", "/api/v1/inference/chat"
WRONG_SCHEMA = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
WRONG_TOOL = {"type": "function", "function": {"name": "f", "parameters": WRONG_SCHEMA, "strict": True}}
LONG = [7] * 2000
NO_SCHEMA = "response_format.json_schema.schema"

# (path, fields beside a sound prompt) -> (status, code, param)
REQUESTS = [
    (CHAT, {"top_p": 2}, 400, "invalid_request", "top_p"),
    (CHAT, {"samplers": ["top_q"]}, 400, "invalid_request", "samplers"),
    (CHAT, {"mirostat_tau": 2}, 400, "invalid_request", "mirostat_tau"),
    (CHAT, {"logit_bias": {"99999": 1}}, 400, "invalid_request", "logit_bias"),
    (CHAT, {"stop_token_ids": [-1]}, 400, "invalid_request", "stop_token_ids"),
    (CHAT, {"stop_token_ids": [99999]}, 400, "invalid_request", "stop_token_ids"),
    (CHAT, {"max_tokens": 0}, 400, "invalid_request", "max_tokens"),
    (CHAT, {"messages": [{"role": "user", "content": "a b " * 900}]}, 400, "context_length_exceeded", "messages"),
    (CHAT, {"grammar": "root ::= missing"}, 400, "invalid_request", "grammar"),
    (CHAT, {"regex": "("}, 400, "invalid_request", "regex"),
    (CHAT, {"json_schema": WRONG_SCHEMA}, 400, "invalid_request", "json_schema"),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": WRONG_SCHEMA}}},
        400,
        "invalid_request",
        "response_format",
    ),
    (
        CHAT,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
            }
        },
        400,
        "invalid_request",
        NO_SCHEMA,
    ),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        400,
        "invalid_request",
        NO_SCHEMA,
    ),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": None}}},
        400,
        "invalid_request",
        NO_SCHEMA,
    ),
    (CHAT, {"tools": [WRONG_TOOL]}, 400, "invalid_request", "tools"),
    (CHAT, {"model": "none"}, 404, "model_not_found", "model"),
    (CHAT, {"format": "json"}, 400, "invalid_request", "format"),
    (TEXT, {"min_p": -1}, 400, "invalid_request", "min_p"),
    (TEXT, {"prompt": LONG}, 400, "context_length_exceeded", "prompt"),
    (TEXT, {"prompt": [99999]}, 400, "invalid_request", "prompt"),
    (LLAMA, {"top_k": -2}, 400, "invalid_request", "top_k"),
    (LLAMA, {"prompt": LONG}, 400, "context_length_exceeded", "prompt"),
    (LLAMA, {"grammar": "root ::= missing"}, 400, "invalid_request", "grammar"),
    (OLE, {"temperature": "hot"}, 400, "invalid_request", None),
    (OLE, {"messages": [{"role": "user", "content": "a b " * 900}]}, 400, "context_length_exceeded", None),
]
_MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("sentences", [True, False])
def test_errors_do_not_depend_on_their_messages(sentences, app_with, monkeypatch):
    with app_with(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}") as client:
        if not sentences:
            drop_sentences(monkeypatch)
        for path, fields, status, code, param in REQUESTS:
            sound = _MESSAGES if path in (CHAT, OLE) else {"prompt": "hi"}
            reply = client.post(path, json={**sound, **fields})
            assert reply.status_code >= 400, (path, fields)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error.get("param")) == (status, code, param), (
                path,
                fields,
                error,
            )
