"""Cors: middleware for cross-origin requests (CORS)."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woolly.serving.gate.origins import AllowedOrigins

_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED = "x-request-id, retry-after, x-woolly-ignored, x-woolly-cache"
_SECONDS = "600"  # seconds that a browser may cache a preflight reply


class CorsMiddleware:
    """Replies to preflight requests, and adds CORS headers to every other reply.

    Other origins get no header, so browsers block the reply; AccessMiddleware rejects their requests.
    """

    def __init__(self, app: ASGIApp, origins: AllowedOrigins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        origin = None if headers is None else headers.get("origin")
        if headers is None or origin is None:
            await self._app(scope, receive, send)
            return
        allowed = {"Vary": "Origin"}
        if self._origins.allows(origin):
            allowed |= {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            if len(allowed) > 1:
                # Requested headers are listed because "*" does not include Authorization.
                wanted = headers.get("access-control-request-headers", "*")
                allowed |= {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Allow-Headers": wanted}
                allowed["Access-Control-Max-Age"] = _SECONDS
            await Response(headers=allowed)(scope, receive, send)
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                told.add_vary_header("Origin")
                for name, value in allowed.items():
                    if name != "Vary":
                        told[name] = value
                if len(allowed) > 1:
                    told["Access-Control-Expose-Headers"] = _EXPOSED
            await send(message)

        await self._app(scope, receive, send_allowed)
