"""Ole's fields mean what they mean elsewhere, and none is ignored."""

import json

import pytest

HI = [{"role": "user", "content": "hi"}]


def text_of(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def test_ole_names_mean_the_same_as_llama_server_names(client):
    def ask(**fields):
        return text_of(client.post("/api/v1/inference/chat", json={"messages": HI, "max_tokens": 40, **fields}))

    plain = ask(seed=5)
    assert ask(seed=5, repetition_penalty=1.9) == ask(seed=5, repeat_penalty=1.9) != plain
    stop = plain[3]
    assert ask(seed=5, stop_sequences=[stop]) == ask(seed=5, stop=[stop]) == plain[: plain.index(stop)]


def test_prompt_is_a_user_message_in_a_chat_and_a_prefix_elsewhere(client):
    fields = {"prompt": "hi", "max_tokens": 6, "seed": 3}
    chat = client.post("/api/v1/inference/chat", json=fields).json()
    assert chat["choices"][0]["message"]["content"] == text_of(
        client.post("/api/v1/inference/complete", json={**fields, "prompt": None, "messages": HI})
    )
    continued = client.post("/api/v1/inference/complete", json=fields).json()
    assert continued["object"] == "text_completion" and continued["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": HI, "num_ctx": 3}, "num_ctx"),
        ({"messages": HI, "prompt": "hi"}, "prompt"),
        ({}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": HI, "repetition_penalty": 1.1, "repeat_penalty": 1.1}, "repetition_penalty"),
        ({"messages": HI, "stop_sequences": ["a"], "stop": "b"}, "stop_sequences"),
        ({"messages": HI, "temperature": "hot"}, "temperature"),
        ({"messages": HI, "top_p": 2}, "top_p"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "repetition_penalty": -1}, "repeat_penalty"),
        ({"messages": HI, "audio": {"voice": "a"}}, "audio"),
        ({"messages": HI, "n": 0}, "n:"),
        ({"messages": HI, "logprobs": True, "top_logprobs": 5000}, "top_logprobs"),
    ],
)
def test_invalid_fields_are_named(client, fields, named):
    reply = client.post("/api/v1/inference/chat", json=fields)
    error = reply.json()["error"]
    assert reply.status_code == 400 and named in error["message"]
    assert set(error) == {"code", "message", "suggestion", "details"}


def test_chat_fields_are_rejected_for_a_completion(client):
    reply = client.post("/api/v1/inference/complete", json={"prompt": "hi", "reasoning_effort": "low"})
    assert reply.status_code == 400 and "reasoning_effort" in reply.json()["error"]["message"]


def test_stream_route_always_streams(client):
    reply = client.post("/api/v1/inference/stream", json={"messages": HI, "stream": False})
    assert reply.status_code == 400 and "stream" in reply.json()["error"]["message"]
    reply = client.post("/api/v1/inference/stream", json={"prompt": "hi", "max_tokens": 3})
    assert reply.headers["content-type"].startswith("text/event-stream") and reply.text.endswith("data: [DONE]\n\n")


def test_session_is_the_complete_conversation(client):
    session = client.post("/api/v1/sessions", json={"system_prompt": "be brief"}).json()["session_id"]
    asked = {"max_tokens": 6, "seed": 1}
    first = text_of(client.post("/api/v1/inference/chat", json={**asked, "messages": HI, "session_id": session}))
    with client.stream(
        "POST", "/api/v1/inference/stream", json={**asked, "prompt": "on", "session_id": session}
    ) as reply:
        chunks = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    second = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    whole = [
        {"role": "system", "content": "be brief"},
        *HI,
        {"role": "assistant", "content": first},
        {"role": "user", "content": "on"},
    ]
    assert text_of(client.post("/api/v1/inference/chat", json={**asked, "messages": whole})) == second
    kept = client.get(f"/api/v1/sessions/{session}").json()["messages"]
    assert kept == [*whole, {"role": "assistant", "content": second}]


def test_session_takes_one_message_at_a_time_and_a_cancelled_one_leaves_no_trace(client):
    session = client.post("/api/v1/sessions").json()["session_id"]
    long = {"type": "chat", "id": "a", "messages": HI, "max_tokens": 450, "ignore_eos": True, "session_id": session}
    with client.websocket_connect("/api/v1/ws") as socket:
        client.app.state.busy_sessions.add(("", session))
        refused = client.post("/api/v1/inference/chat", json={"messages": HI, "session_id": session})
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "session_busy"
        client.app.state.busy_sessions.clear()
        socket.send_json(long)
        assert socket.receive_json()["type"] == "start"
        socket.send_json({"type": "cancel", "id": "a"})
        while (message := socket.receive_json())["type"] == "token":
            pass
        assert message["type"] == "cancelled"
    assert client.get(f"/api/v1/sessions/{session}").json()["message_count"] == 0
    assert client.app.state.busy_sessions == set()


def test_missing_session_is_not_found(client):
    reply = client.post("/api/v1/inference/chat", json={"messages": HI, "session_id": "nobody"})
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "session_not_found"
    reply = client.post("/api/v1/sessions", json={"model_name": "nobody"})
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"


def events(client, **fields):
    text = client.post("/api/v1/inference/stream", json={"messages": HI, "max_tokens": 3, "ignore_eos": True, **fields})
    lines = [line.removeprefix("data: ") for line in text.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]", text.text
    return [json.loads(line) for line in lines]


def test_stream_carries_usage_and_timings_on_request(client):
    plain = events(client)
    assert plain[-1]["usage"]["completion_tokens"] == 3 and plain[-1]["timings"]["predicted_n"] == 3
    assert not any("usage" in chunk or "timings" in chunk for chunk in plain[:-1])

    asked = events(client, stream_options={"include_usage": True})
    assert asked[-1]["choices"] == [] and asked[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in asked[:-1])
    assert asked[-2]["choices"][0]["finish_reason"] == "length" and asked[-2]["timings"]["predicted_n"] == 3

    assert not any("usage" in chunk for chunk in events(client, stream_options={"include_usage": False}))

    timed = events(client, timings_per_token=True)
    assert all("timings" in chunk for chunk in timed[1:]) and "usage" in timed[-1]
