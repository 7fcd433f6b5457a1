"""Compaction: a note in place of a conversation, by its own route and by the item that clients such as Codex send."""

import json
from dataclasses import replace

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.serving.conftest import _app
from woolly.chat import ChatRequest, Message, Tool, ToolCall, ToolChoice
from woolly.chat.compaction import COMPACTION_PROMPT, compaction_request, without_oldest
from woolly.chat.schema_prompt import add_schema
from woolly.sampling import SamplingParams
from woolly.serving.dialects.encrypted_reasoning import decode_reasoning, encode_reasoning
from woolly.serving.dialects.responses.compaction import recent_questions
from woolly.serving.model_manager.catalog import ModelCatalog

TALK = [
    {"role": "user", "content": "wool " * 4},
    {"role": "assistant", "content": "sheep"},
    {"role": "user", "content": "grass?"},
]
BODY = {"input": TALK, "max_output_tokens": 6, "temperature": 0, "ignore_eos": True, "logit_bias": {"100": 100}}
TRIGGER = {"type": "compaction_trigger"}


def parts(text):
    """The content of a message, as OpenAI's SDK reads it."""
    return [{"type": "input_text", "text": text}]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compaction")
    write_tiny(replace(TINY["llama"], context=4096), folder / "tiny.gguf")
    with _app(folder, folder, ctx_size=2048) as client:
        yield client


def test_compact_returns_the_questions_and_one_reusable_summary(client):
    reply = client.post("/v1/responses/compact", json=BODY).json()
    assert reply["object"] == "response.compaction" and reply["usage"]["output_tokens"] == 6
    *kept, note = reply["output"]
    assert [item["content"] for item in kept] == [parts("wool " * 4), parts("grass?")]
    assert note["type"] == "compaction" and decode_reasoning(note["encrypted_content"])
    counted = client.post("/v1/responses/input_tokens", json={"input": reply["output"]})
    assert counted.status_code == 200
    short = client.post("/v1/responses/input_tokens", json={"input": kept}).json()["input_tokens"]
    assert counted.json()["input_tokens"] > short
    after = client.post("/v1/responses", json={**BODY, "input": [*reply["output"], TALK[-1]]})
    assert after.status_code == 200 and after.json()["output"]


def test_trigger_streams_one_item_and_later_turns_begin_with_it(client):
    body = {**BODY, "input": [*TALK, TRIGGER], "stream": True}
    events = [
        json.loads(line[6:])
        for line in client.post("/v1/responses", json=body).text.splitlines()
        if line[:5] == "data:"
    ]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    (item,) = events[-1]["response"]["output"]
    assert item == events[3]["item"] and item["type"] == "compaction"
    id = events[-1]["response"]["id"]
    listed = client.get(f"/v1/responses/{id}/input_items").json()["data"]
    assert all(item.get("type") != TRIGGER["type"] for item in listed)
    count = {"input": "more", "previous_response_id": id}
    chained = client.post("/v1/responses/input_tokens", json=count).json()["input_tokens"]
    whole = client.post(
        "/v1/responses/input_tokens", json={"input": [item, {"role": "user", "content": "more"}]}
    ).json()
    assert chained == whole["input_tokens"]


def test_too_long_conversation_loses_its_oldest_turns_before_compaction(client):
    long = [{"role": role, "content": "wool " * 30} for _ in range(10) for role in ("user", "assistant")]
    reply = client.post("/v1/responses/compact", json={**BODY, "input": [*long, TALK[-1]]})
    assert reply.status_code == 200, reply.text
    assert "the summary omits the" in reply.headers["x-woolly-ignored"]
    alone = client.post("/v1/responses/compact", json={**BODY, "input": "wool " * 900})
    assert alone.status_code == 400 and alone.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/v1/responses/compact", {"stream": True}, "stream: not supported by compaction"),
        ("/v1/responses/compact", {"conversation": "conv_1"}, "conversation: not supported by compaction"),
        ("/v1/responses", {"input": [*TALK, TRIGGER], "background": True}, "background: not supported by compaction"),
        ("/v1/responses", {"input": [TRIGGER, *TALK]}, "input.0: a compaction_trigger must be the last input item"),
        ("/v1/responses", {"input": [TRIGGER]}, "input: empty"),
        (
            "/v1/responses",
            {"input": [{"type": "compaction", "encrypted_content": "gAAAAB"}]},
            "created by another server",
        ),
    ],
)
def test_unsupported_compaction_fields_are_rejected_by_name(client, path, fields, says):
    reply = client.post(path, json={**BODY, **fields})
    assert reply.status_code == 400 and says in reply.json()["error"]["message"]


def test_summary_request_has_no_constraints():
    tool = Tool.of({"type": "function", "function": {"name": "shear"}})
    params = SamplingParams(n=3, max_tokens=9000, logprobs=2)
    chat = ChatRequest((Message("user", "a"),), params, ToolChoice((tool,), "required"), {"type": "object"})
    asked = compaction_request(chat, 100)
    assert asked.messages[-1].text == COMPACTION_PROMPT and asked.tools.mode == "auto" and asked.schema is None
    assert (asked.params.n, asked.params.max_tokens, asked.params.logprobs) == (1, 100, None)
    for given, budget in ((None, 50), (9000, 50), (8, 8), (0, 0)):
        assert (
            compaction_request(
                replace(chat, params=replace(params, reasoning_budget=given)), 100
            ).params.reasoning_budget
            == budget
        )
    for bound in ({"regex": "a"}, {"json_object": True}, {"choice": ("a", "b")}):
        free = compaction_request(ChatRequest((Message("user", "a"),), SamplingParams(**bound)), 100).params
        assert free.structure is None


def test_summary_request_keeps_the_schema_of_the_prompt():
    schema = {"type": "object"}
    for bound in ({"schema": schema}, {"params": SamplingParams(json_schema=schema)}):
        chat = ChatRequest((Message("user", "a"),), tell_schema=True, **bound)
        asked = compaction_request(chat, 100)
        assert list(asked.messages[:-1]) == add_schema(chat.messages, schema)  # what the cache has
        assert asked.messages[-1].text == COMPACTION_PROMPT
        assert not asked.tell_schema and asked.shown_schema is None and asked.params.structure is None


def test_results_are_dropped_with_their_calls_and_the_first_question_stays():
    call = Message("assistant", "", calls=(ToolCall("1", "shear", "{}"),))
    turn = [call, Message("tool", "wool", call_id="1")]
    messages = [Message("system", "s"), Message("user", "task"), *turn * 3, Message("user", COMPACTION_PROMPT)]
    left = without_oldest(messages)
    assert [message.role for message in left] == ["system", "user", *["assistant", "tool"] * 2, "user"]
    while (fewer := without_oldest(left)) is not None:
        left = fewer
    assert [message.text for message in left] == ["s", "task", COMPACTION_PROMPT]


def test_latest_questions_are_kept_within_a_share_of_the_context():
    items = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y"}, *TALK]
    assert [item["content"] for item in recent_questions(items, 100)] == [parts("wool " * 4), parts("grass?")]
    assert recent_questions([{"type": "compaction", "encrypted_content": encode_reasoning("a")}], 100) == []


def test_kept_share_uses_the_served_context_even_if_the_request_loads_the_model(client, monkeypatch):
    # Before the load the context is a guess: devices, types of the cache and learned positions make it less.
    monkeypatch.setattr(ModelCatalog, "_context", lambda self, info: 4096)
    body = {**BODY, "input": [{"role": "user", "content": "wool " * 240}, *TALK[1:]]}  # between 1024 and 2048
    assert client.post("/models/unload", json={"model": "tiny"}).status_code == 200
    reply = client.post("/v1/responses/compact", json=body)
    assert reply.status_code == 200, reply.text
    assert [item.get("content") for item in reply.json()["output"]] == [parts("grass?"), None]


def test_model_without_a_summary_is_an_error_in_both_forms(client):
    body = {**BODY, "logit_bias": {"32": 100}}  # spaces
    reply = client.post("/v1/responses/compact", json=body)
    assert reply.status_code == 422 and reply.json()["error"]["code"] == "compaction_failed"
    whole = client.post("/v1/responses", json={**body, "input": [*TALK, TRIGGER]})
    assert whole.status_code == 422 and "instead of a summary" in whole.json()["error"]["message"]
    stream = client.post("/v1/responses", json={**body, "input": [*TALK, TRIGGER], "stream": True}).text
    assert "response.failed" in stream and "compaction_failed" in stream
