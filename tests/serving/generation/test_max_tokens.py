"""A limit beyond the room of the context means "at most", in every dialect."""

import pytest

MESSAGES = {"messages": [{"role": "user", "content": "sheep"}]}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**MESSAGES, "max_tokens": 100_000}),
        ("/v1/chat/completions", {**MESSAGES, "max_completion_tokens": 100_000}),
        ("/v1/completions", {"prompt": "sheep", "max_tokens": 100_000}),
        ("/api/v1/inference/chat", {**MESSAGES, "max_tokens": 100_000}),
    ],
)
def test_fixed_client_limit_is_clipped(app_with, path, body):
    with app_with(ctx_size=64, chat_template=TEMPLATE) as client:
        reply = client.post(path, json={**body, "ignore_eos": True})
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    assert reply.json()["usage"]["total_tokens"] == 64


def test_llama_server_route_clips_too(app_with):
    with app_with(ctx_size=64) as client:
        reply = client.post("/completion", json={"prompt": "sheep", "n_predict": 100_000, "ignore_eos": True}).json()
    assert reply["stop_type"] == "limit" and reply["truncated"]
    assert reply["tokens_evaluated"] + reply["tokens_predicted"] == 64


def test_prompt_that_leaves_no_room_is_rejected(app_with):
    with app_with(ctx_size=64) as client:
        reply = client.post("/v1/completions", json={"prompt": "sheep " * 80, "max_tokens": 100_000})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
