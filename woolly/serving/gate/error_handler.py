"""Middleware that turns exceptions of inner middleware and routes into replies."""

from __future__ import annotations

from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woolly.serving.dialect import Dialects
from woolly.serving.errors import ApiError, release_frames, to_api_error
from woolly.serving.observability.logs import log
from woolly.serving.observability.metrics import Stats


class ErrorMiddleware:
    """Sends an error in the format of the dialect, or closes a WebSocket. Logs exceptions other than ApiError."""

    def __init__(self, app: ASGIApp, stats: Stats, dialects: Dialects) -> None:
        self._app = app
        self._dialects = dialects
        self._stats = stats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] == "http":
                await self._reply(scope, send, error)
            elif scope["type"] == "websocket":
                await self._close(scope, receive, send, error)
            else:
                raise
            release_frames(error)

    async def _reply(self, scope: Scope, send: Send, error: Exception) -> None:
        api_error = to_api_error(error)
        self._stats.count_error(api_error.code)
        scope["state"]["reason"] = api_error.reason
        if api_error.status >= 500 and not isinstance(error, ApiError):
            log.error("request failed", exc_info=error)
        if scope["state"]["status"] is not None:
            return  # the reply has begun: it stays incomplete, and uvicorn closes the connection
        response = JSONResponse(self._dialects.of(scope["path"]).error(api_error), api_error.status, api_error.headers)
        await response(scope, _no_more, send)

    async def _close(self, scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
        if isinstance(error, ApiError):  # raised by a middleware; routes handle their errors
            self._stats.count_error(error.code)
            scope["state"]["reason"] = error.reason
            scope["state"]["status"] = error.status
            await receive()  # the handshake
            # Closing before the handshake is accepted becomes a plain HTTP 403.
            await send({"type": "websocket.close", "code": 1008, "reason": error.message[:100]})
            return
        scope["state"]["status"] = 500
        log.error("websocket failed", exc_info=error)
        with suppress(Exception):
            await send({"type": "websocket.close", "code": 1011})


async def _no_more() -> Message:
    return {"type": "http.disconnect"}
