"""Middleware that assigns each request an id, counts its reply and writes its log line."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woolly.serving.accounts.account import current_account
from woolly.serving.accounts.quotas import Quotas
from woolly.serving.errors import ApiError
from woolly.serving.gate.exempt_paths import ExemptPaths
from woolly.serving.observability.logs import ignored, log, request_id
from woolly.serving.observability.metrics import Stats
from woolly.serving.observability.request_history import RequestHistory, answer_log
from woolly.serving.observability.traces import Traces

_SOUND_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GONE = 499  # status logged if the client disconnects before the reply starts


def client_of(connection: HTTPConnection) -> str:
    """Return the name of the client in the log."""
    return str(getattr(connection.state, "client", ""))


def owner_of(connection: HTTPConnection) -> str:
    """Return the owner of a client's sessions and requests: its key or user.

    Without keys, all clients have the same owner.
    """
    return str(getattr(connection.state, "owner", ""))


def check_admin(connection: HTTPConnection) -> None:
    """Raise ApiError 403 unless the client may load, configure and unload models for all clients."""
    if not connection.state.is_admin:
        raise ApiError(
            403,
            "access_denied",
            "this key may not load, configure or unload models",
            suggestion="name a model in a request to load it, or use an admin key",
        )


class RequestIdMiddleware:
    """Initializes `scope["state"]` and adds the request id to the reply's headers."""

    def __init__(
        self,
        app: ASGIApp,
        stats: Stats,
        paths: ExemptPaths,
        quotas: Quotas | None = None,
        history: RequestHistory | None = None,
        traces: Callable[[], Traces | None] = lambda: None,
    ) -> None:
        self._app = app
        self._quotas = Quotas() if quotas is None else quotas
        self._history = RequestHistory(0, with_texts=False) if history is None else history
        self._traces = traces
        self._stats = stats
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        state = _enter(scope)
        started = time.monotonic()

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
                message["headers"] = [*message.get("headers", ()), *_headers(state, self._quotas)]
            await send(message)

        is_http = scope["type"] == "http"
        try:
            await self._app(scope, receive, identified if is_http else send)
        finally:
            status = state["status"] or (_GONE if is_http else 101)
            fields = {"client": state["client"], "path": scope["path"][:200], "status": status}
            fields["ms"] = 1000 * (time.monotonic() - started)
            fields |= {"reason": state["reason"], "ignored": ", ".join(state["ignored"]) or None}
            self._stats.count_ignored(len(state["ignored"]))
            self._history.add(scope, state, status, fields["ms"])
            if (traces := self._traces()) is not None:
                traces.add(scope, state, status, fields["ms"])
            if is_http:
                self._stats.count_reply(status)
                is_quiet = status < 400 and self._paths.is_quiet(scope["method"], scope["path"])
                level = log.debug if is_quiet else log.info
                level("request", extra={**fields, "method": scope["method"]})
            else:
                log.info("socket", extra=fields)


def _headers(state: MutableMapping[str, Any], quotas: Quotas) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-request-id", state["id"].encode()), (b"x-content-type-options", b"nosniff")]
    if state["ignored"]:
        headers.append((b"x-woolly-ignored", ", ".join(state["ignored"]).encode("ascii")))
    if state["account"] is not None:
        headers += quotas.headers(state["account"])
    return headers


def _enter(scope: Scope) -> MutableMapping[str, Any]:
    given = Headers(scope=scope).get("x-request-id", "")
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    state["id"] = given if _SOUND_ID.fullmatch(given) else secrets.token_hex(8)
    state["client"] = state["bucket"] = f"ip:{scope['client'][0] if scope.get('client') else 'unknown'}"
    state["owner"] = ""
    state["is_admin"], state["account"] = False, None  # set by AccessMiddleware
    current_account.set(None)
    state["status"] = state["reason"] = None
    state["ignored"] = []
    state["answers"] = []
    ignored.set(state["ignored"])
    answer_log.set(state["answers"])
    request_id.set(state["id"])
    return state
