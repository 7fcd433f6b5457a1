"""Fields of other servers: renamed, refused by the right name, or taken without effect and said so."""

import logging
import re

import pytest

MESSAGES = {"messages": [{"role": "user", "content": "sheep"}]}
CHAT, TEXT, LLAMA, OLE = "/v1/chat/completions", "/v1/completions", "/completion", "/api/v1/inference/chat"
BODIES = {CHAT: MESSAGES, TEXT: {"prompt": "sheep"}, LLAMA: {"prompt": "sheep"}, OLE: MESSAGES}
SHORT = {"max_tokens": 2}


def n_ignored(client):
    return float(re.search(r"^woolly_ignored_fields_total (\S+)$", client.get("/metrics").text, re.MULTILINE)[1])


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_accepted_and_named(client, caplog, path):
    before = n_ignored(client)
    caplog.set_level(logging.INFO, "woolly.serving")
    reply = client.post(path, json={**BODIES[path], **SHORT, "zzz": 1, "keep_alive": "5m", "nothing": None})
    assert reply.status_code == 200
    assert reply.headers["x-woolly-ignored"] == "zzz, keep_alive"
    assert [one.ignored for one in caplog.records if getattr(one, "path", None) == path] == ["zzz, keep_alive"]
    assert n_ignored(client) == before + 2


def test_misspelt_field_is_named_regardless_of_its_value(client):
    for value in (0, 0.0, [], None, False):
        reply = client.post(TEXT, json={"prompt": "sheep", **SHORT, "temprature": value})
        assert reply.headers["x-woolly-ignored"] == "temprature (did you mean temperature?)", value
    assert client.post(TEXT, json={"prompt": "sheep", **SHORT, "zzz": 0}).headers["x-woolly-ignored"] == "zzz"


def test_request_without_unknown_fields_has_no_such_header(client):
    assert "x-woolly-ignored" not in client.post(TEXT, json={"prompt": "sheep", **SHORT}).headers


def test_similar_name_is_suggested(client):
    reply = client.post(TEXT, json={"prompt": "sheep", **SHORT, "temprature": 1})
    assert reply.headers["x-woolly-ignored"] == "temprature (did you mean temperature?)"


def test_name_that_no_header_can_carry_is_escaped(client):
    reply = client.post(TEXT, json={"prompt": "sheep", **SHORT, "ü\r\nx-evil: 1": 1, **{f"{i}": 1 for i in range(50)}})
    assert reply.status_code == 200 and "x-evil" not in reply.headers
    assert reply.headers["x-woolly-ignored"].startswith("\\xfc\\r\\nx-evil: 1, 0, 1")
    assert len(reply.headers["x-woolly-ignored"].split(", ")) == 20
    for name in ("", " ", "a "):
        reply = client.post(TEXT, json={"prompt": "sheep", **SHORT, "b": 1, name: 1})
        assert reply.headers["x-woolly-ignored"] == f'b, "{name}"'


def test_unknown_fields_of_every_message_are_accepted(client):
    message = {"role": "user", "content": "sheep", "cache_control": {"type": "ephemeral"}}
    reply = client.post(CHAT, json={"messages": [message] * 30, **SHORT})
    assert reply.status_code == 200
    assert reply.headers["x-woolly-ignored"] == "messages.cache_control"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"n_predict": 3}, {"max_tokens": 3}),
        ({"num_predict": 3}, {"max_tokens": 3}),
        ({"repetition_penalty": 1.9, "max_tokens": 9}, {"repeat_penalty": 1.9, "max_tokens": 9}),
        ({"guided_choice": ["wolf"], "max_tokens": 9}, {"choice": ["wolf"], "max_tokens": 9}),
        ({"guided_regex": "ab*c", "max_tokens": 9}, {"regex": "ab*c", "max_tokens": 9}),
        ({"guided_json": {"type": "null"}, "max_tokens": 9}, {"json_schema": {"type": "null"}, "max_tokens": 9}),
        ({"guided_json": '{"type": "null"}', "max_tokens": 9}, {"json_schema": {"type": "null"}, "max_tokens": 9}),
        ({"structured_outputs": {"regex": "ab*c"}, "max_tokens": 9}, {"regex": "ab*c", "max_tokens": 9}),
        ({"structured_outputs": {"json": {"type": "null"}}}, {"json_schema": {"type": "null"}}),
        ({"ebnf": 'root ::= "ab" | "cd"'}, {"grammar": 'root ::= "ab" | "cd"'}),
        ({"guided_grammar": 'root ::= "ab" | "cd"'}, {"grammar": 'root ::= "ab" | "cd"'}),
        ({"guided_grammar": '?start: "ab" | "cd"'}, {"lark": 'start: "ab" | "cd"'}),
        ({"structured_outputs": {"grammar": '?start: "ab" | "cd"'}}, {"lark": 'start: "ab" | "cd"'}),
    ],
)
def test_alias_means_the_same_as_our_name(client, theirs, ours):
    fixed = {"prompt": "sheep", "temperature": 0, "repeat_last_n": 64}
    made = client.post(TEXT, json={**fixed, **theirs})
    assert made.status_code == 200 and "x-woolly-ignored" not in made.headers
    assert made.json()["choices"] == client.post(TEXT, json={**fixed, **ours}).json()["choices"]


def test_llama_server_value_for_no_limit_is_no_limit(app_with):
    with app_with(ctx_size=64) as client:
        reply = client.post(TEXT, json={"prompt": "sheep", "n_predict": -1, "ignore_eos": True})
    assert reply.json()["usage"]["total_tokens"] == 64


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        (CHAT, {"format": "json"}, "format: use response_format or json_schema"),
        (CHAT, {"options": {"temperature": 0}}, "options: send its fields at the top level"),
        (
            CHAT,
            {"structured_outputs": {"json": {"a": 1}, "regex": "a"}},
            "structured_outputs: expected an object with one of: json, ",
        ),
        (CHAT, {"guided_json": "{"}, "guided_json: expected a JSON schema"),
        (CHAT, {"prompt": "sheep"}, "prompt: use messages"),
        (CHAT, {"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "a synonym of repeat_penalty"),
        (TEXT, {"thinking_token_budget": 20}, "reasoning_budget: only chats support it"),
        (CHAT, {"thinking_token_budget": 20, "reasoning_budget": 3}, "a synonym of reasoning_budget"),
        (TEXT, {"adapter": "wool"}, "adapter: adapters are loaded with --lora"),
        (
            "/v1/responses",
            {"input": [{"type": "compaction_trigger"}, {"role": "user", "content": "a"}]},
            "must be the last",
        ),
        (TEXT, {"messages": [1]}, "messages: only chats support it"),
        (TEXT, {"tools": [1]}, "tools: only chats support it"),
        (TEXT, {"use_beam_search": True}, "use_beam_search: beam search is not supported"),
        (
            "/api/v1/inference/complete",
            {"prompt": "a", "tool_choice": "none"},
            "tool_choice: only chats support it",
        ),
    ],
)
def test_field_that_would_change_the_answer_is_rejected_by_its_sent_name(client, path, fields, says):
    reply = client.post(path, json={**BODIES.get(path, {}), **fields})
    assert reply.status_code == 400 and says in reply.json()["error"]["message"]


@pytest.mark.parametrize("value", [None, False, [], {}])
def test_null_requests_nothing(client, value):
    reply = client.post(TEXT, json={"prompt": "sheep", **SHORT, "tools": value, "format": value})
    assert reply.status_code == 200 and "x-woolly-ignored" not in reply.headers


def test_unlimited_thinking_requests_nothing(client):
    reply = client.post(CHAT, json={**BODIES[CHAT], **SHORT, "thinking_budget_tokens": -1})
    assert reply.status_code == 200 and "x-woolly-ignored" not in reply.headers


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"model": "tiny", "thinking": {"type": "enabled", "budget_tokens": 7}}),
        (CHAT, {"thinking": {"type": "disabled", "budget_tokens": 7}}),
        (CHAT, {"reasoning": {"max_tokens": 7}}),
        (CHAT, {"reasoning_budget": 7}),
        (CHAT, {"reasoning_budget_tokens": 7}),
        (CHAT, {"thinking_budget_tokens": 7}),
        (CHAT, {"thinking_token_budget": 7}),
    ],
)
def test_thinking_budget_has_many_names(client, path, fields, monkeypatch):
    generator, seen = client.app.state.generator, []
    format_chat = generator.format_chat

    async def watched(chat, slot, model):
        seen.append(chat.params.reasoning_budget)
        return await format_chat(chat, slot, model)

    monkeypatch.setattr(generator, "format_chat", watched)
    reply = client.post(path, json={"messages": [{"role": "user", "content": "hi"}], **SHORT, **fields})
    assert reply.status_code == 200, reply.text
    assert set(seen) == {7}


def test_missing_field_is_named_before_an_unknown_one(client):
    error = client.post(CHAT, json={"prompt": "hi", "zzz": 1}).json()["error"]
    assert error["param"] == "messages"
    assert error["message"] == "messages: field required; prompt belongs to POST /v1/completions"
    error = client.post(TEXT, json=MESSAGES).json()["error"]
    assert error["message"] == "prompt: field required; messages belong to POST /v1/chat/completions"
    assert client.post(CHAT, json={"zzz": 1}).json()["error"]["message"] == "messages: field required"
    error = client.post(CHAT, json={"messages": []}).json()["error"]
    assert error["message"] == "messages: list should have at least 1 item, not 0"


def test_socket_reports_ignored_fields(client):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "id": "a", "prompt": "sheep", **SHORT, "zzz": 1})
        assert socket.receive_json()["ignored"] == ["zzz"]
        while socket.receive_json()["type"] != "done":
            pass
        socket.send_json({"type": "chat", "id": "b", "prompt": "sheep", **SHORT})
        assert "ignored" not in socket.receive_json()


PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
THINKING = PLAIN + "<think>{# </think> #}"
SWITCH = PLAIN + "{{ reasoning_effort }}"
CHANNELS = PLAIN + "{# <|channel|> <|message|> #}"


@pytest.mark.parametrize(
    ("template", "effort", "status", "ignores"),
    [
        (PLAIN, "high", 200, True),
        (PLAIN, "none", 200, False),
        (SWITCH, "high", 200, False),
        (THINKING, "high", 200, False),  # no budget
        (THINKING, "strange", 200, True),
        (THINKING, "none", 200, False),  # the prompt ends with an empty thought
        (CHANNELS, "none", 200, False),  # a budget of 0 ends the reasoning
    ],
)
def test_effort_unknown_to_the_template_is_ignored_if_thinking_is_off(app_with, template, effort, status, ignores):
    with app_with(chat_template=template) as client:
        reply = client.post(CHAT, json={**MESSAGES, **SHORT, "reasoning_effort": effort})
    assert reply.status_code == status
    assert ("reasoning_effort" in reply.headers.get("x-woolly-ignored", "")) == ignores


@pytest.mark.parametrize("fields", [{"cache_prompt": False}, {"store": True}, {"service_tier": "flex"}])
def test_known_field_without_effect_is_ignored(client, fields):
    reply = client.post(CHAT, json={**MESSAGES, **SHORT, **fields})
    assert reply.status_code == 200 and reply.headers["x-woolly-ignored"] in fields
