"""Middleware that reads the body of a request within its limits and parses its JSON once."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from woolly.serving.errors import ApiError
from woolly.serving.gate.json_parser import parse_json

_COLLECTED_BYTES = 64 << 20  # bytes of released bodies between two garbage collections
_RETRY = 1.0  # seconds after which other requests may have released memory
_FORM = "multipart/form-data"
_FORM_PATHS = ("/files", "/audio/transcriptions", "/audio/translations")  # path suffixes that accept a form
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
_JSON = re.compile(r"application/([\w.-]+\+)?json", re.IGNORECASE)


class BodyBudget:
    """Memory limit of all request bodies together. Use this class only on the event loop thread."""

    def __init__(self, most: int) -> None:
        self._max_bytes = most
        self._n_released = 0  # bytes released since the last collection
        self.n_held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function `take(n_bytes)` that reserves memory until the block exits.

        Received bytes count, not the Content-Length. `take` raises ApiError 503 if the limit is exceeded.
        """
        n_taken = 0

        def take(n_bytes: int) -> None:
            nonlocal n_taken
            if self.n_held + n_bytes > self._max_bytes:
                raise ApiError(
                    503,
                    "too_many_bytes",
                    f"open requests use {self.n_held} of {self._max_bytes} bytes for bodies; try again later",
                    retry_after=_RETRY,
                )
            self.n_held += n_bytes
            n_taken += n_bytes

        try:
            yield take
        finally:
            self.n_held -= n_taken
            self._n_released += n_taken
            if self._n_released > _COLLECTED_BYTES:
                # The garbage collector counts objects, not bytes: a reference cycle with a body would stay in memory
                # for thousands of requests.
                self._n_released = 0
                gc.collect(1)


class BodyMiddleware:
    """Passes the complete body to the route and stores its JSON value as `scope["state"]["json"]`.

    The value is an ApiError if the body is not valid JSON, because unknown paths and routes that take raw bytes must
    not fail with a JSON error.
    """

    def __init__(
        self,
        app: ASGIApp,
        budget: BodyBudget,
        most: int,
        seconds: float,
        takes_any: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Limits a body to `most` bytes and `seconds` until it is complete.

        `takes_any(path)` returns True if the route accepts JSON with any Content-Type.
        """
        self._app = app
        self._takes_any = takes_any
        self._budget = budget
        self._max_bytes = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body of a request; WebSocket routes limit their messages."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length, kind = headers.get("content-length", ""), headers.get("content-type", "")
        declared = int(length) if length.isdigit() and len(length) < 20 else None
        with self._budget.share() as take:
            body = await read_body(receive, declared, self._max_bytes, self._seconds, take)
            if body is None:
                return
            if kind.lower().startswith(_FORM) and scope["path"].endswith(_FORM_PATHS):
                scope["state"]["form_type"] = kind
            elif body and scope["method"] in _WITH_BODY:
                if kind and not _JSON.match(kind) and not self._takes_any(scope["path"]):
                    scope["state"]["json"] = _not_json(kind)
                else:
                    scope["state"]["json"] = await _value_of(body)
            await self._app(scope, _replay(body, receive), send)


async def read_body(
    receive: Receive, declared: int | None, most: int, seconds: float, take: Callable[[int], None] = lambda _: None
) -> bytes | None:
    """Return the complete body, or None if the client disconnects.

    Raises ApiError 413 if the body is too large, 408 if the client sends it too slowly. `take` is called with the size
    of each part and may raise.
    """
    if declared is not None and declared > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    # asyncio's wait_for would start a task for each part, although most parts have already arrived.
    with anyio.move_on_after(seconds):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
            take(len(parts[-1]))
            if not message.get("more_body", False):
                return b"".join(parts)
    raise ApiError(408, "request_too_slow", f"the request did not arrive within {seconds:g} seconds; send it faster")


async def _value_of(body: bytes) -> Any:
    """Return the JSON value of a body, or an ApiError if it is not valid JSON."""
    try:
        return await parse_json(body)
    except ApiError as error:
        return error


def _not_json(kind: str) -> ApiError:
    message = f"unsupported Content-Type {kind[:80]!r}; send application/json"
    return ApiError(415, "unsupported_media_type", message)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body first, then the messages after it."""
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _too_large(most: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than the limit of {most} bytes")
