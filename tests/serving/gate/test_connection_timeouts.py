"""Both of uvicorn's protocols are cut when their client stops reading, and only then."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.cases.clock import run_skipping
from woolly.serving.gate.connection_timeouts import connection_class, socket_class


class Transport(asyncio.Transport):
    """Remembers whether it was aborted."""

    is_aborted = False
    n_waiting = 1000

    def abort(self):
        self.is_aborted = True

    def set_write_buffer_limits(self, high=None, low=None):
        assert high == 0

    def get_write_buffer_size(self):
        return self.n_waiting

    def is_closing(self):
        return False

    def write(self, data):
        pass

    def close(self):
        pass


async def app(scope, receive, send):
    raise AssertionError("no request was sent")


@pytest.mark.parametrize("make", [lambda: connection_class(10, 5), lambda: socket_class(5)], ids=["http", "ws"])
@pytest.mark.parametrize("reads_again", [False, True])
def test_connection_is_aborted_when_its_client_stops_reading(make, reads_again):
    async def story():
        config = uvicorn.Config(app, lifespan="off")
        protocol = make()(config, ServerState(), {})
        transport = Transport()
        protocol.connection_made(transport)
        protocol.pause_writing()
        assert not transport.is_aborted
        if reads_again:
            protocol.resume_writing()
        await asyncio.sleep(20)
        assert transport.is_aborted != reads_again
        protocol.connection_lost(None)

    run_skipping(story())


def test_slow_reader_is_not_disconnected():
    async def story():
        protocol = connection_class(10, 5)(uvicorn.Config(app, lifespan="off"), ServerState(), {})
        transport = Transport()
        protocol.connection_made(transport)
        protocol.pause_writing()
        for _ in range(6):
            await asyncio.sleep(4)
            transport.n_waiting -= 10
        assert not transport.is_aborted
        await asyncio.sleep(20)
        assert transport.is_aborted
        protocol.connection_lost(None)

    run_skipping(story())


@contextlib.asynccontextmanager
async def listening(app, seconds):
    """Serves an app at a socket with a small buffer; gives its address and the set of open connections."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    config, state = uvicorn.Config(app, lifespan="off", log_config=None), ServerState()
    make = connection_class(10, seconds)
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: make(config, state, {}), sock=listener):
        yield listener.getsockname(), state.connections


REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


def test_silent_reader_is_disconnected_even_with_a_small_pending_reply():
    async def reply(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 60_000})

    async def story():
        async with listening(reply, 0.2) as (address, connections):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(address)
                client.sendall(REQUEST)
                while not connections:  # until it is taken
                    await asyncio.sleep(0.01)
                while connections:  # until it is cut
                    await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("is_gone", [False, True])
def test_half_closed_client_gets_its_reply_and_a_closed_one_is_detected(is_gone):
    left = []

    async def reply(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        gone = asyncio.ensure_future(receive())
        done, _ = await asyncio.wait([gone], timeout=60 if is_gone else 0.7)
        left.append(bool(done))
        gone.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"sheep"})

    async def story():
        async with listening(reply, 60) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST)
            await writer.drain()
            if is_gone:
                writer.close()
                await writer.wait_closed()
            else:
                writer.write_eof()
                assert (await reader.read()).endswith(b"sheep")
                writer.close()
            while connections:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(story(), 60))
    assert left == [is_gone]
