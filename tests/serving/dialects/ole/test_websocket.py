"""Chats over a socket: several at once, each cancelled by itself, and no message that ends the connection."""

import asyncio
import contextlib
import json
import logging
import socket as sockets
import struct
import threading
import time

import pytest
from starlette.websockets import WebSocketDisconnect

from tests.serving.conftest import serving

HI = [{"role": "user", "content": "hi"}]
LONG = {"messages": HI, "max_tokens": 480, "ignore_eos": True}


def until(socket, *kinds):
    """Messages up to the first of a kind."""
    messages = [socket.receive_json()]
    while messages[-1]["type"] not in kinds:
        messages.append(socket.receive_json())
    return messages


def pages_free(client):
    (slot,) = client.app.state.models.loaded_models
    pool = slot.model.engine.scheduler.pages
    return pool.n_free == pool.n_pages


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_tokens_add_up_to_the_answer_over_http(client):
    asked = {"messages": HI, "max_tokens": 20, "seed": 4}
    reply = client.post("/api/v1/inference/chat", json=asked).json()
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", **asked})
        messages = until(socket, "done", "error")
    name = messages[0].pop("request_id")
    assert name.endswith(".1") and messages[0] == {"type": "start", "id": "chat-1", "model": "tiny"}
    text = "".join(message["content"] for message in messages[1:-1])
    assert text == messages[-1]["content"] == reply["choices"][0]["message"]["content"]
    assert messages[-1]["usage"]["completion_tokens"] == 20 and messages[-1]["finish_reason"] == "length"


def test_one_chat_is_cancelled_and_another_continues(client, brake):
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
            if "long" in ends:
                brake.let_go()
    assert ends == {"long": "cancelled", "short": "done"}
    assert wait_for(lambda: pages_free(client))


def test_disconnected_client_frees_its_pages(client, brake):
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
        ('{"type": "chat", "prompt": "hi", "format": "json"}', "format"),
        ('{"type": "chat", "prompt": "hi", "stream": false}', "stream"),
        ('{"type": "chat", "prompt": "hi", "temperature": NaN}', "NaN"),
        ('{"type": "chat", "prompt": "hi", "model": "nobody"}', "nobody"),
        ('{"type": "chat", "id": 7, "prompt": "hi"}', "id"),
        ('{"type": "cancel", "id": "nobody"}', "id"),
        ('{"type": "cancel"}', "id"),
    ],
)
def test_invalid_message_is_reported_and_the_socket_stays_open(client, text, named):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_text(text)
        reported = socket.receive_json()
        assert reported["type"] == "error" and named in reported["error"]["message"]
        socket.send_json({"type": "ping"})
        assert socket.receive_json() == {"type": "pong"}


def test_two_chats_with_one_name_are_rejected(client, brake):
    with client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "id": "a", **LONG})
        assert socket.receive_json()["type"] == "start"
        socket.send_json({"type": "chat", "id": "a", **LONG})
        assert until(socket, "error", "done")[-1]["error"]["code"] == "chat_exists"


def test_binary_message_is_rejected_and_the_socket_stays_open(client):
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
def test_cross_origin_pages_cannot_connect(client, origin):
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/api/v1/ws", headers={"origin": origin}) as socket,
    ):
        socket.receive_json()


def test_every_chat_has_a_request_id_and_a_log_line(client, caplog, brake):
    with caplog.at_level(logging.INFO, "woolly.serving"):
        with client.websocket_connect("/api/v1/ws", headers={"x-request-id": "mine"}) as socket:
            socket.send_json({"type": "chat", "messages": HI, "max_tokens": 1})
            started = until(socket, "done")[0]
            socket.send_json({"type": "chat", "messages": HI, "model": "nobody"})
            until(socket, "error")
            socket.send_json({"type": "chat", "id": "long", **LONG})
            until(socket, "token")
            socket.send_json({"type": "cancel", "id": "long"})
            until(socket, "cancelled")
        assert wait_for(lambda: any(record.getMessage() == "socket" for record in caplog.records))
    assert started["request_id"] == "mine.1"
    lines = [record for record in caplog.records if record.getMessage() == "request"]
    assert [(line.method, line.path, line.status) for line in lines] == [
        ("WS", "/api/v1/ws", 200),
        ("WS", "/api/v1/ws", 404),
        ("WS", "/api/v1/ws", 499),
    ]
    (end,) = [record for record in caplog.records if record.getMessage() == "socket"]
    assert end.status == 101 and end.ms > 0


def test_rejected_socket_is_logged_with_its_status(client, caplog):
    with (
        caplog.at_level(logging.INFO, "woolly.serving"),
        contextlib.suppress(WebSocketDisconnect),
        client.websocket_connect("/api/v1/ws", headers={"origin": "https://evil.example"}),
    ):
        pass
    assert [record.status for record in caplog.records if record.getMessage() == "socket"] == [403]


def test_idle_socket_is_closed_and_one_with_a_chat_is_not(app_with, monkeypatch):
    clock, passed, is_closed = time.monotonic, [], threading.Event()
    monkeypatch.setattr("time.monotonic", lambda: clock() + sum(passed))

    @contextlib.asynccontextmanager
    async def late(context):
        passed.append(1000)
        for _ in range(3):  # the timer of the socket ends meanwhile
            await asyncio.sleep(0)
        async with context as value:
            yield value

    def pass_time():
        while not is_closed.wait(0.01):
            passed.append(1000)
            client.portal.call(asyncio.sleep, 0)

    with app_with(socket_idle=600) as client, client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "messages": HI, "max_tokens": 1})
        until(socket, "done")
        # A chat that waits for its model for longer than the limit is not an idleness.
        models = client.app.state.models
        monkeypatch.setattr(models, "use", lambda name, real=models.use: late(real(name)))
        socket.send_json({"type": "chat", "messages": HI, "max_tokens": 1})
        assert until(socket, "done", "error")[-1]["type"] == "done"
        passing = threading.Thread(target=pass_time)
        passing.start()
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        is_closed.set()
        passing.join()
    assert closed.value.code == 1001 and "600 seconds" in closed.value.reason


def test_timings_are_sent_with_every_token_on_request(client):
    with client.websocket_connect("/api/v1/ws") as socket:
        options = {"timings_per_token": True, "stream_options": {"include_usage": True}}
        socket.send_json({"type": "chat", "messages": HI, "max_tokens": 3, "ignore_eos": True, **options})
        messages = until(socket, "done", "error")
    assert messages[-1]["usage"]["completion_tokens"] == 3
    tokens = [message for message in messages if message["type"] == "token"]
    assert tokens and all(token["timings"]["prompt_n"] > 0 for token in tokens)


def test_socket_chats_count_for_the_total_of_body_bytes(app_with):
    with app_with(max_body="2KB", max_bodies="2KB") as client, client.websocket_connect("/api/v1/ws") as socket:
        socket.send_json({"type": "chat", "messages": [{"role": "user", "content": "x" * 2000}]})
        assert until(socket, "error", "done")[-1]["error"]["code"] == "too_many_bytes"
        assert client.app.state.bodies.n_held == 0


def test_socket_that_reads_nothing_is_closed_and_its_chat_ends(tiny_model, tmp_path):
    # Seconds enough for a busy machine to send what opens a socket.
    with serving(tiny_model, tmp_path, "--timeout", "4", "-t", "1", ctx=512) as server:
        plain = sockets.socket()
        plain.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1024)
        plain.connect(server.address)
        with plain:
            head = "GET /api/v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            plain.sendall(f"{head}Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
            plain.recv(64)
            # Megabytes of errors that nobody reads: each message quotes much of what was wrong with it.
            wrong = json.dumps({"type": "x" * 900}).encode()
            frame = struct.pack("!BBHI", 0x81, 0x80 | 126, len(wrong), 0) + wrong
            plain.settimeout(60)
            with contextlib.suppress(OSError):
                for _ in range(100_000):
                    plain.sendall(frame)
            with server.client() as api:
                assert wait_for(lambda: " socket client" in server.log.read_text())
                assert api.get("/health").status_code == 200


def test_removed_key_ends_its_open_sockets_at_the_next_chat(app_with):
    with app_with(api_key=("first", "second")) as client:
        authenticator = client.app.state.authenticator
        token, _ = authenticator.issue("ole", "first")
        for credential in ("first", token):
            authenticator.set_keys(("first", "second"), (), ())
            with client.websocket_connect("/api/v1/ws", headers={"x-api-key": credential}) as socket:
                socket.send_json({"type": "chat", "messages": HI, "stream": False})
                assert "a socket always streams" in json.dumps(
                    socket.receive_json()
                )  # the key is taken, the chat is not
                authenticator.set_keys(("second",), (), ())
                socket.send_json({"type": "ping"})
                assert socket.receive_json() == {"type": "pong"}
                socket.send_json({"type": "chat", "messages": HI, "stream": False})
                with pytest.raises(WebSocketDisconnect) as closed:
                    socket.receive_json()
                assert closed.value.code == 1008 and "is no longer valid; connect again" in closed.value.reason
