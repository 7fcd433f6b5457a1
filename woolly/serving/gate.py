"""The Gate: what every request passes before a route sees it, and what watches over it until its end."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woolly.serving.auth import Authority
from woolly.serving.errors import ApiError, error_body, of_exception
from woolly.serving.health import Health
from woolly.serving.limits import BodyBudget, RateLimiter, check_json, read_body
from woolly.serving.logs import log, request_id
from woolly.serving.metrics import Stats
from woolly.serving.reference import is_reference
from woolly.serving.settings import Settings
from woolly.serving.web import is_public

__all__ = ["Gate"]

# Open without a key: they tell whether the server lives, or are where a key is shown.
_HEALTH = re.compile(r"(/api/v1|/v1)?/health(/ready|/live)?")
_TOKENS = ("/api/v1/auth/token", "/api/v1/auth/validate")

# Answered until the end, beside health and tokens.
_METRICS = ("/metrics", "/api/v1/metrics")

_READING = ("GET", "HEAD", "OPTIONS")
_STOPPING = 5.0  # seconds until another server may have taken over

_SOUND_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Gate:
    """An ASGI middleware: request id, log line, key, rate, body, disconnection, errors."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        authority: Authority,
        stats: Stats,
        rates: RateLimiter,
        bodies: BodyBudget,
        health: Health,
    ) -> None:
        self._app = app
        self._settings = settings
        self._authority = authority
        self._stats = stats
        self._rates = rates
        self._bodies = bodies
        self._health = health
        # Without keys a server of this machine alone is safe from web pages only if they cannot pose as it.
        is_local = settings.host == "localhost" or settings.host.startswith("127.") or settings.host == "::1"
        self._checks_host = is_local and authority.is_open and not settings.trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or WebSocket."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        state = self._enter(scope, headers)
        reply = _Reply(send, state["id"])
        is_health = _HEALTH.fullmatch(scope["path"]) is not None
        started = time.monotonic()
        try:
            self._admit(scope, headers, is_health)
            with self._bodies.share() as take:
                body = await self._body(scope, headers, receive, take)
                if body is not None:
                    await _Watched(body, receive).run(self._app, scope, reply)
        except Exception as error:
            await self._tell(scope, reply, error)
        finally:
            self._stats.replied(reply.status)
            level = log.debug if is_health else log.info
            level(
                "request",
                extra={
                    "client": state["client"],
                    "method": scope["method"],
                    "path": scope["path"][:200],
                    "status": reply.status,
                    "ms": 1000 * (time.monotonic() - started),
                },
            )

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        state = self._enter(scope, headers)
        started, status = time.monotonic(), 101
        try:
            refusal = self._refusal(scope, headers)
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                status = refusal.status
                await receive()  # the handshake
                # A close before the handshake is accepted becomes a plain HTTP 403.
                await send({"type": "websocket.close", "code": 1008, "reason": refusal.message[:100]})
        except Exception:
            status = 500
            log.error("websocket failed", exc_info=True)
            with suppress(Exception):
                await send({"type": "websocket.close", "code": 1011})
        finally:
            log.info(
                "socket",
                extra={
                    "client": state["client"],
                    "path": scope["path"][:200],
                    "status": status,
                    "ms": 1000 * (time.monotonic() - started),
                },
            )

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        """Why a WebSocket may not be opened."""
        try:
            self._check_origin(headers)
            self._admit(scope, headers, False)
        except ApiError as error:
            self._stats.refused(error.code)
            return error
        return None

    def _enter(self, scope: Scope, headers: Headers) -> MutableMapping[str, Any]:
        given = headers.get("x-request-id", "")
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["id"] = given if _SOUND_ID.fullmatch(given) else secrets.token_hex(8)
        state["client"] = f"ip:{scope['client'][0] if scope.get('client') else 'unknown'}"
        state["bucket"] = state["client"]
        state["owner"] = ""
        request_id.set(state["id"])
        return state

    def _admit(self, scope: Scope, headers: Headers, is_health: bool) -> None:
        state = scope["state"]
        if is_health:
            return
        if self._checks_host:
            self._check_host(scope, headers)
        if is_public(scope.get("method", ""), scope["path"]):
            return  # a page of many files, which asks for the key itself
        if self._authority.is_open and scope.get("method", "GET") not in _READING:
            self._check_origin(headers)  # a form of any page can post what needs no key
        if self._needs_key(scope):
            client = self._authority.identify(_credential(headers))
            if client is None:
                self._rates.count(state["bucket"])  # guessing is limited too
                raise ApiError(
                    401,
                    "authentication_failed",
                    "a valid API key is needed, as `Authorization: Bearer KEY` or `X-API-Key: KEY`",
                    suggestion="ask the operator of this server for a key",
                )
            state["client"], state["bucket"], state["owner"] = client.name, client.key, client.owner
        self._rates.count(state["bucket"])
        if self._health.state == "draining" and scope["path"] not in (*_TOKENS, *_METRICS):
            raise ApiError(503, "server_stopping", "the server is about to stop", retry_after=_STOPPING)

    def _needs_key(self, scope: Scope) -> bool:
        method, path = scope.get("method", ""), scope["path"]
        is_free = path in _TOKENS or method == "OPTIONS" or is_reference(method, path)
        return not self._authority.is_open and not is_free

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """A page may give its own name this machine's address (DNS rebinding); the name then gives it away."""
        host = (_split(f"//{headers.get('host', '')}").hostname or "").rstrip(".")
        known = ("localhost", (scope.get("server") or ("",))[0], *self._settings.allowed_hosts)
        if host in known or host.endswith(".localhost"):
            return
        try:
            ip_address(host)
        except ValueError:
            raise ApiError(
                403, "access_denied", "the Host header names another server; ask for 127.0.0.1, or see --allowed-hosts"
            ) from None

    def _check_origin(self, headers: Headers) -> None:
        """Browsers let any page open a WebSocket or post a form, so it must be of this server or be configured."""
        origin = headers.get("origin")
        allowed = self._settings.cors_origins
        if origin is None or "*" in allowed or origin in allowed:
            return
        if _split(origin).netloc != headers.get("host"):
            raise ApiError(403, "access_denied", "pages of this origin may not ask here; see --cors-origins")

    async def _body(
        self, scope: Scope, headers: Headers, receive: Receive, take: Callable[[int], None]
    ) -> bytes | None:
        length = headers.get("content-length", "")
        declared = int(length) if length.isdigit() and len(length) < 20 else None
        body = await read_body(receive, declared, self._settings.max_body_bytes, self._settings.timeout, take)
        if body and scope["method"] in _WITH_BODY:
            await check_json(body)
        return body

    async def _tell(self, scope: Scope, reply: _Reply, error: Exception) -> None:
        told = of_exception(error)
        self._stats.refused(told.code)
        if told.status >= 500 and not isinstance(error, ApiError):
            log.error("request failed", exc_info=error)
        if reply.is_started:
            return  # too late for a status: the reply is left without its end, and the connection is closed
        response = JSONResponse(error_body(told, scope["path"]), told.status, told.headers)
        await response(scope, _no_more, reply)


class _Reply:
    """`send` with the request's id in the headers; remembers the status."""

    def __init__(self, send: Send, name: str) -> None:
        self._send = send
        self._name = name
        self.status = 499  # what is logged where the client went away before the reply
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self._name.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)


class _Watched:
    """Runs a route with a body that was read, and cancels it when the client goes away."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
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
            await route
        except asyncio.CancelledError:
            if not self._gone.is_set():
                route.cancel()
                raise
            if not is_complete:
                log.info("client gone")
        finally:
            watch.cancel()

    async def _next(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _watch(self, route: asyncio.Future[None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()
        route.cancel()


async def _no_more() -> Message:
    return {"type": "http.disconnect"}


def _split(address: str) -> SplitResult:
    """An address; of one that cannot be read, such as `[`, nothing."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _credential(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else headers.get("x-api-key")
