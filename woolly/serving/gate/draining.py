"""Draining: middleware that rejects requests while the server stops."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from woolly.serving.errors import server_stopping
from woolly.serving.gate.exempt_paths import ExemptPaths
from woolly.serving.observability.health import Health


class DrainingMiddleware:
    """Replies with 503 while the server stops, except on health, page, token and metrics routes."""

    def __init__(self, app: ASGIApp, health: Health, paths: ExemptPaths) -> None:
        self._app = app
        self._health = health
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        if self._health.state == "draining" and scope["type"] in ("http", "websocket"):
            method, path = scope.get("method", ""), scope["path"]
            if not self._paths.is_unlimited(method, path) and not self._paths.is_served_while_draining(path):
                raise server_stopping()
        await self._app(scope, receive, send)
