"""Middleware that cancels a route when its client disconnects."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woolly.serving.errors import server_stopping
from woolly.serving.observability.health import Health
from woolly.serving.observability.logs import log


class DisconnectMiddleware:
    """Receives the complete body from BodyMiddleware as one message, then watches for a disconnect.

    Raises ApiError 503 if the server stops before the reply starts.
    """

    def __init__(self, app: ASGIApp, health: Health) -> None:
        self._app = app
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Watched(await receive(), receive, self._health).run(self._app, scope, send)


class _Watched:
    """A request with its body and the state of its connection."""

    def __init__(self, body: Message, receive: Receive, health: Health) -> None:
        self._health = health
        self._body: Message | None = body
        self._receive = receive
        self._gone = asyncio.Event()

    async def run(self, app: ASGIApp, scope: Scope, send: Send) -> None:
        is_complete = False

        async def pass_on(message: Message) -> None:
            nonlocal is_complete
            await send(message)
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        route = asyncio.ensure_future(app(scope, self._next, pass_on))
        watch = asyncio.ensure_future(self._watch(route))
        try:
            # The shield lets a stopping server reply with an error immediately, although a route that waits for a
            # thread can end only with that thread.
            await asyncio.shield(route)
        except asyncio.CancelledError:
            if not self._gone.is_set():
                route.cancel()
                if self._health.state == "draining" and scope["state"]["status"] is None:
                    raise server_stopping() from None
                await asyncio.wait([route])  # resources of the route are released when its thread ends
                raise
            if not is_complete:
                log.info("client gone")
        finally:
            watch.cancel()
            del route, watch  # breaks a cycle: task, exception, traceback, this frame, body

    async def _next(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return body
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _watch(self, route: asyncio.Future[None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()
        route.cancel()
