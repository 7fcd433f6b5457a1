"""Sockets under attack: without a key, with another client's ids, and with messages that are meant to break them."""

import json

import pytest
from starlette.websockets import WebSocketDisconnect

from tests.serving.dialects.ole.test_websocket import LONG, until

WS = "/api/v1/ws"
KEYS = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer three"}, {"Authorization": "one"}])
def test_socket_needs_a_key(app_with, headers):
    with app_with(api_key=("one", "two")) as client:
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(WS, headers=headers):
            pass
        with client.websocket_connect(WS, headers=KEYS[0]) as socket:
            socket.send_json({"type": "ping"})
            assert socket.receive_json() == {"type": "pong"}


def test_chat_of_another_socket_cannot_be_cancelled(app_with, brake):
    with (
        app_with(api_key=("one", "two")) as client,
        client.websocket_connect(WS, headers=KEYS[0]) as mine,
        client.websocket_connect(WS, headers=KEYS[1]) as theirs,
    ):
        mine.send_json({"type": "chat", "id": "a", **LONG})
        assert mine.receive_json()["type"] == "start"
        theirs.send_json({"type": "cancel", "id": "a"})
        assert theirs.receive_json()["error"]["code"] == "chat_not_found"
        assert mine.receive_json()["type"] == "token"
        mine.send_json({"type": "cancel", "id": "a"})
        brake.let_go()
        assert until(mine, "cancelled", "done")[-1]["type"] == "cancelled"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps({"type": "x" * 300_000}),
        json.dumps({"type": ["chat"] * 10_000}),
        json.dumps({"type": "chat", "id": "y" * 200_000}),
        json.dumps({"type": "chat", "messages": {"a": "z" * 300_000}}),
        '{"type": "chat", "id": "\\ud800"}',
        "\0",
    ],
)
def test_hostile_message_gets_a_short_error_and_the_socket_stays_open(client, text):
    with client.websocket_connect(WS) as socket:
        socket.send_text(text)
        reported = socket.receive_text()
        assert json.loads(reported)["type"] == "error" and len(reported) < 5000
        socket.send_json({"type": "ping"})
        assert socket.receive_json() == {"type": "pong"}
