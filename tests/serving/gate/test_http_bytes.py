"""Pieces of a stream go past h11, with the bytes that it would have made of them."""

import asyncio

import h11
import pytest
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from woolly.serving.gate.connection_timeouts import _send_quickly

PIECES = (b"data: {}\n\n", b"", "data: ü\n\n".encode() * 40, b"x")


class Transport:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data

    def close(self):
        self.data += b"|"


class Flow:
    """Pauses before each third piece, if at all."""

    def __init__(self, pauses):
        self.n_looks, self.n_drains, self._pauses = 0, 0, pauses

    @property
    def write_paused(self):
        self.n_looks += 1
        return self._pauses and self.n_looks % 3 == 0

    async def drain(self):
        self.n_drains += 1


def sent(is_quick, method, version, headers, status=200, pauses=False):
    """The bytes of a reply, and whether the writer waited for its reader."""

    async def run():
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(f"{method} / HTTP/{version}\r\nHost: a\r\n\r\n".encode())
        assert isinstance(connection.next_event(), h11.Request)
        assert isinstance(connection.next_event(), h11.EndOfMessage)
        transport, flow = Transport(), Flow(pauses)
        cycle = RequestResponseCycle(
            scope={"headers": [], "method": method, "http_version": version},
            conn=connection,
            transport=transport,
            flow=flow,
            logger=None,
            access_logger=None,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            on_response=lambda: None,
        )
        if is_quick:
            _send_quickly(cycle)
        send = cycle.send
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in PIECES:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "more_body": True})
        cycle.disconnected = pauses
        await send({"type": "http.response.body", "body": b"end", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        assert "send" not in vars(cycle)  # nothing is left for the collector
        return transport.data, flow.n_drains

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "version", "headers", "more"),
    [
        ("POST", "1.1", [(b"content-type", b"text/event-stream")], {}),
        ("POST", "1.1", [], {"pauses": True}),
        ("POST", "1.1", [(b"Content-Length", b"%d" % (sum(map(len, PIECES)) + 3))], {}),
        ("POST", "1.1", [], {"status": 503}),
        ("POST", "1.0", [], {}),
        ("HEAD", "1.1", [], {}),
        ("GET", "1.1", [], {}),
    ],
)
def test_reply_has_the_bytes_of_h11(method, version, headers, more):
    data, n_drains = sent(False, method, version, headers, **more)
    assert sent(True, method, version, headers, **more) == (data, n_drains)
    assert bool(n_drains) == ("pauses" in more)
    if version == "1.1" and not headers and method == "POST":
        assert b"\r\na\r\ndata: {}\n\n\r\n" in data
