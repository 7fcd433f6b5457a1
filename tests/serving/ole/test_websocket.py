"""Chats over a socket: several at once, each cancelled by itself, and no message that ends the connection."""

import time

import pytest
from starlette.websockets import WebSocketDisconnect

HI = [{"role": "user", "content": "hi"}]
LONG = {"messages": HI, "max_tokens": 480, "ignore_eos": True}


def until(socket, *kinds):
    """Messages up to the first of a kind."""
    messages = [socket.receive_json()]
    while messages[-1]["type"] not in kinds:
        messages.append(socket.receive_json())
    return messages


def pages_free(client):
    (slot,) = client.app.state.models.all_loaded
    pool = slot.llm.llm.engine.scheduler.pages
    return pool.n_free == pool.n_pages


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_tokens_add_up_to_the_answer_of_the_same_request_over_http(client):
    asked = {"messages": HI, "max_tokens": 20, "seed": 4}
    reply = client.post("/api/v1/inference/chat", json=asked).json()
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", **asked})
        messages = until(socket, "done", "error")
    assert messages[0] == {"type": "start", "id": "chat-1", "model": "tiny"}
    text = "".join(message["content"] for message in messages[1:-1])
    assert text == messages[-1]["content"] == reply["choices"][0]["message"]["content"]
    assert messages[-1]["usage"]["completion_tokens"] == 20 and messages[-1]["finish_reason"] == "length"


def test_one_chat_is_cancelled_and_another_goes_on(client):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "id": "long", **LONG})
        assert socket.receive_json()["type"] == "start"
        socket.send_json({"type": "chat", "id": "short", "messages": HI, "max_tokens": 3})
        socket.send_json({"type": "cancel", "id": "long"})
        ends = {}
        while len(ends) < 2:
            message = socket.receive_json()
            if message["type"] in ("done", "cancelled", "error"):
                ends[message["id"]] = message["type"]
    assert ends == {"long": "cancelled", "short": "done"}
    assert wait_for(lambda: pages_free(client))


def test_a_client_that_leaves_frees_its_pages(client):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", **LONG})
        until(socket, "token")
    assert wait_for(lambda: pages_free(client))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("no json", "JSON"),
        ("[1]", "JSON object"),
        ("[" * 100_000, "deep"),
        ('{"type": "chat", "prompt": "\\ud800"}', "surrogate"),
        ('{"type": "sing"}', "type"),
        ('{"type": ["chat"]}', "type"),
        ('{"type": "chat"}', "prompt"),
        ('{"type": "chat", "messages": [], "id": "x"}', "messages"),
        ('{"type": "chat", "prompt": "hi", "colour": 1}', "colour"),
        ('{"type": "chat", "prompt": "hi", "stream": false}', "stream"),
        ('{"type": "chat", "prompt": "hi", "service_tier": "flex"}', "service_tier"),
        ('{"type": "chat", "prompt": "hi", "temperature": NaN}', "NaN"),
        ('{"type": "chat", "prompt": "hi", "model": "nobody"}', "nobody"),
        ('{"type": "chat", "id": 7, "prompt": "hi"}', "id"),
        ('{"type": "cancel", "id": "nobody"}', "id"),
        ('{"type": "cancel"}', "id"),
    ],
)
def test_what_is_wrong_with_a_message_is_told_and_the_socket_goes_on(client, text, named):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_text(text)
        told = socket.receive_json()
        assert told["type"] == "error" and named in told["error"]["message"]
        socket.send_json({"type": "ping"})
        assert socket.receive_json() == {"type": "pong"}


def test_two_chats_of_one_name_are_refused(client):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "id": "a", **LONG})
        assert socket.receive_json()["type"] == "start"
        socket.send_json({"type": "chat", "id": "a", **LONG})
        assert until(socket, "error", "done")[-1]["error"]["code"] == "chat_exists"


def test_a_message_of_bytes_is_refused_and_the_socket_goes_on(client):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_bytes(b"\xff")
        assert socket.receive_json()["type"] == "error"
        socket.send_json({"type": "ping"})
        assert socket.receive_json() == {"type": "pong"}


def test_every_chat_counts_for_the_rate(app_with):
    with app_with(rate_limit=3) as client, client.websocket_connect("/api/v1/ws") as socket:
        ends = []
        for _ in range(3):
            socket.send_json({"type": "chat", "messages": HI, "max_tokens": 1})
            ends.append(until(socket, "done", "error")[-1])
    assert [end["type"] for end in ends] == ["done", "done", "error"]
    assert ends[-1]["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://[", "null"])
def test_pages_of_other_origins_cannot_connect(client, origin):
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/api/v1/ws", headers={"origin": origin}) as socket,
    ):
        socket.receive_json()
