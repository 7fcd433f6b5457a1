"""Prefix: middleware that removes the path of --api-prefix."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class PrefixMiddleware:
    """Serves all routes below a path prefix; other paths return 404."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path, prefix = scope["path"], self._prefix
        if path != prefix and not path.startswith(f"{prefix}/"):
            not_found = PlainTextResponse(f"all routes of this server begin with {prefix}\n", 404)
            await not_found(scope, receive, send)
            return
        raw = scope.get("raw_path") or path.encode()
        inner = {"path": path.removeprefix(prefix) or "/", "raw_path": raw.removeprefix(prefix.encode()) or b"/"}
        await self._app({**scope, **inner}, receive, send)
