"""Bodies: middleware that reads the body of a request within its limits and parses its JSON once."""

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

_COLLECTED_BYTES = 64 << 20  # of bodies, between two collections of young objects
_RETRY = 1.0  # seconds after which other requests may have released their bodies
_FORM = "multipart/form-data"
_FORM_PATHS = ("/files", "/audio/transcriptions", "/audio/translations")  # ends of paths that take a form
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
_JSON = re.compile(r"application/([\w.-]+\+)?json", re.IGNORECASE)


class BodyBudget:
    """Total bytes of all request bodies in memory. Event loop thread only."""

    def __init__(self, most: int) -> None:
        self._max_bytes = most
        self._n_released = 0  # since the last collection
        self.n_held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yields `take(n_bytes)`; everything taken is released when the block exits.

        Only received bytes count, not the Content-Length. `take` raises
        ApiError 503 if the budget is spent.
        """
        n_taken = 0

        def take(n_bytes: int) -> None:
            nonlocal n_taken
            if self.n_held + n_bytes > self._max_bytes:
                raise ApiError(
                    503,
                    "too_many_bytes",
                    f"the requests under way hold {self.n_held} bytes, and this server holds at most {self._max_bytes};"
                    " try again",
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
                # The collector counts objects, not bytes: one cycle that holds a body would keep it for thousands of
                # requests.
                self._n_released = 0
                gc.collect(1)


class BodyMiddleware:
    """Gives the route its body as one message, and the value of its JSON as `scope["state"]["json"]`.

    The value is an ApiError if the body is not valid JSON: a path without a route, or one that takes bytes, has a
    better answer than that.
    """

    def __init__(
        self,
        app: ASGIApp,
        budget: BodyBudget,
        most: int,
        seconds: float,
        takes_any: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """A body has at most `most` bytes and arrives within `seconds`.

        `takes_any(path)` says whether JSON may come under any Content-Type.
        """
        self._app = app
        self._takes_any = takes_any
        self._budget = budget
        self._max_bytes = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; messages of a WebSocket are limited by its route."""
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
    """Return the complete body, None if the client goes away. ApiError 413 if it is too large, 408 if too slow.

    `take` counts the bytes as they arrive, and may raise.
    """
    if declared is not None and declared > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    # asyncio's wait_for would start a task for each part, and most parts have arrived already.
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
    """Return the value of a body, or the ApiError of one that is not valid JSON."""
    try:
        return await parse_json(body)
    except ApiError as error:
        return error


def _not_json(kind: str) -> ApiError:
    message = f"the Content-Type is {kind[:80]!r}; this route takes application/json"
    return ApiError(415, "unsupported_media_type", message)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first and then what follows it."""
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _too_large(most: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than {most} bytes, which this server takes at most")
