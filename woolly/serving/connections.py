"""Connections: uvicorn's with an end for clients that say too little, or do not take what they asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from woolly.serving.errors import ApiError, error_body

__all__ = ["connection_class", "socket_class"]


def connection_class(most: int, seconds: float) -> type[H11Protocol]:
    """The protocol with at most so many connections, and so many seconds for the head of a request."""

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _stall: asyncio.TimerHandle | None = None
        _is_websocket = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                self._refuse(
                    ApiError(
                        503,
                        "too_many_connections",
                        f"{most} connections are open, which is all that this server takes; try again",
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

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            self._taken()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            # The client does not take what was sent; `close` would wait for it for ever.
            self._stall = self._stall or self.loop.call_later(seconds, self.transport.abort)
            super().pause_writing()

        def resume_writing(self) -> None:
            self._taken()
            super().resume_writing()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._is_websocket = True
            self._unwatch()
            super().handle_websocket_upgrade(event)

        def send_400_response(self, msg: str) -> None:
            self._refuse(ApiError(400, "invalid_http", "this is no HTTP/1.1 request"))

        def _taken(self) -> None:
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None

        def _watch(self) -> None:
            """The clock runs while a request is begun and not all of its head is there."""
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
                self._refuse(
                    ApiError(408, "request_too_slow", f"no request arrived within {seconds:g} seconds; send it faster")
                )
            else:
                self.transport.close()

        def _refuse(self, error: ApiError) -> None:
            """Tells why, without an app, and closes."""
            if self.transport.is_closing():
                return
            body = json.dumps(error_body(error, "/")).encode()
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
    """WebSockets that are cut where the client takes nothing for so many seconds."""

    class Socket(WebSocketsSansIOProtocol):
        _stall: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            # As of HTTP: a close would wait behind what the client does not take.
            self._stall = self._stall or self.loop.call_later(seconds, self.transport.abort)
            super().pause_writing()

        def resume_writing(self) -> None:
            self._taken()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._taken()
            super().connection_lost(exc)

        def _taken(self) -> None:
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None

    return Socket
