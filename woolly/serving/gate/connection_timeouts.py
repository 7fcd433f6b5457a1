"""HTTP and WebSocket protocols of uvicorn with timeouts for slow clients.

uvicorn has no public interface for such timeouts, so pyproject.toml pins a range of uvicorn versions.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from woolly.serving.errors import ApiError, error_body

_LENGTHS = {b"content-length", b"transfer-encoding"}  # headers with the body length, which a proxy may read differently
_FIRST_LOOK, _LOOK = 0.02, 0.5  # seconds between checks for a reset by a half-closed client


class _StallWatch(asyncio.Protocol):
    """Aborts a connection whose client reads nothing for `stall_seconds`.

    `close` would wait for the client to read the buffered data.
    """

    stall_seconds: float
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stall: asyncio.TimerHandle | None = None
    _below: asyncio.Transport | None = None  # transport below TLS; None without TLS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._below = _transport_below(transport)
        # A write limit of 0 pauses the protocol at the first unread byte; with a higher limit, a client that stops
        # reading would go unnoticed. asyncio's TLS never resumes with a limit of 0.
        transport.set_write_buffer_limits(high=0 if self._below is None else 1)
        if self._below is not None:
            self._below.set_write_buffer_limits(high=0)
            _follow_tls_buffer(transport, self._below.get_protocol())

    def pause_writing(self) -> None:
        self._end_stall()
        self._watch_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_stall()
        super().connection_lost(exc)

    def _watch_reading(self, n_before: int | None = None) -> None:
        """Abort if no data was read since `n_before` bytes were buffered; otherwise check again later."""
        n_waiting = self.transport.get_write_buffer_size()
        if self._below is not None:
            n_waiting += self._below.get_write_buffer_size()
        if n_before is not None and n_waiting >= n_before:
            self.transport.abort()
        else:
            self._stall = self.loop.call_later(self.stall_seconds, self._watch_reading, n_waiting)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _transport_below(transport: asyncio.Transport) -> asyncio.Transport | None:
    """Return the socket's transport below TLS, for which asyncio has no public name, or None without TLS."""
    below: asyncio.Transport | None = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return below


def _follow_tls_buffer(transport: asyncio.Transport, tls: Any) -> None:
    """Pause the protocol above TLS when the buffer below TLS is full; asyncio does not count encrypted data.

    After a WebSocket upgrade, this pauses the WebSocket protocol instead of the HTTP protocol.
    """
    if "pause_writing" in vars(tls):
        return
    pauses, resumes = tls.pause_writing, tls.resume_writing
    above: Any = transport.get_protocol
    tls.pause_writing = lambda: (pauses(), above().pause_writing())
    tls.resume_writing = lambda: (resumes(), above().resume_writing())


def _send_quickly(cycle: Any) -> None:
    """Add a fast path for streamed chunks to a reply (uvicorn's RequestResponseCycle).

    h11 takes 6 µs to check and frame a chunk. The frame of every chunk but the last depends only on the chunk's length,
    so writing it without h11 takes 1 µs.
    """
    send, is_chunked = cycle.send, False

    async def quick(message: Any) -> None:
        nonlocal is_chunked
        if is_chunked and message.get("more_body") and not cycle.response_complete:
            if cycle.flow.write_paused and not cycle.disconnected:
                await cycle.flow.drain()
            if not cycle.disconnected and (body := message.get("body", b"")):
                cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            return
        await send(message)
        if cycle.response_complete or cycle.disconnected:
            vars(cycle).pop("send", None)  # breaks a reference cycle that only the garbage collector would free
        if message["type"] == "http.response.start":
            has_length = any(name.lower() in _LENGTHS for name, _ in message.get("headers", ()))
            is_plain = cycle.scope["http_version"] == "1.1" and cycle.scope["method"] == "POST"
            is_chunked = is_plain and not has_length and message["status"] == 200

    cycle.send = quick


def connection_class(most: int, seconds: float) -> type[H11Protocol]:
    """Return an HTTP protocol with at most `most` connections and `seconds` to receive a request's headers."""

    class Connection(_StallWatch, H11Protocol):
        stall_seconds = seconds
        _timer: asyncio.TimerHandle | None = None
        _looking: asyncio.TimerHandle | None = None
        _is_websocket = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                self._send_error(
                    ApiError(
                        503,
                        "too_many_connections",
                        f"all {most} connections of this server are in use; try again later",
                        retry_after=1,
                    )
                )
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            self._watch()

        def handle_events(self) -> None:
            """Read requests from new data and, after a reply, from buffered data."""
            before = self.cycle
            super().handle_events()
            cycle = self.cycle
            if cycle is not None and cycle is not before:
                _send_quickly(cycle)
            if cycle is not None and {name for name, _ in cycle.scope["headers"]} >= _LENGTHS:
                # A proxy may have read the length differently, so the next bytes could be a smuggled request.
                cycle.keep_alive = False

        def eof_received(self) -> bool:  # type: ignore[override]
            """Keep the connection of a half-closed client that waits for a reply, such as `nc -N`.

            If the reply has begun, the end of the client's data means that the client has closed its socket.
            """
            super().eof_received()
            cycle = self.cycle
            if self._below is not None:
                return False  # asyncio's TLS has no half-closed connections
            if cycle is None or cycle.more_body or cycle.response_started or self._is_websocket:
                return False
            cycle.keep_alive = False
            if cycle.scope["http_version"] == "1.1":
                # A closed socket looks half-closed too, but the client's kernel replies to this write with a reset.
                self.transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            self._looking = self.loop.call_later(_FIRST_LOOK, self._look)
            return True

        def _look(self) -> None:
            """Abort after a reset, which asyncio does not notice because it stops reading at the end of the data."""
            self._looking = None
            if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()
            else:
                self._looking = self.loop.call_later(_LOOK, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            if self._looking is not None:
                self._looking.cancel()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._is_websocket = True
            self._unwatch()
            super().handle_websocket_upgrade(event)

        def send_400_response(self, msg: str) -> None:
            self._send_error(ApiError(400, "invalid_http", "this is not an HTTP/1.1 request"))

        def _watch(self) -> None:
            """Run the timeout until the headers of a request are complete."""
            is_waiting = self.cycle is None or self.cycle.response_complete
            if not is_waiting or self._is_websocket or self.transport.is_closing():
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._expire)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if self.cycle is None:
                self._send_error(
                    ApiError(
                        408,
                        "request_too_slow",
                        f"no complete request arrived within {seconds:g} seconds; send it faster",
                    )
                )
            else:
                self.transport.close()

        def _send_error(self, error: ApiError) -> None:
            """Send an error without calling the app, and close the connection."""
            if self.transport.is_closing():
                return
            body = json.dumps(error_body(error)).encode()
            fields: dict[str, Any] = {
                "Content-Type": "application/json",
                "Content-Length": len(body),
                "Connection": "close",
                **error.headers,
            }
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            self.transport.write(f"HTTP/1.1 {error.status} Refused\r\n{head}\r\n".encode() + body)
            self.transport.close()

    return Connection


def socket_class(seconds: float) -> type[WebSocketsSansIOProtocol]:
    """Return a WebSocket protocol that aborts if the client reads nothing for `seconds`."""

    class Socket(_StallWatch, WebSocketsSansIOProtocol):  # type: ignore[misc]
        stall_seconds = seconds

    return Socket
