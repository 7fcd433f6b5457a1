"""Replies as JSON, and as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from woolly.serving.errors import error_body, of_exception
from woolly.serving.events import EventStream, event

__all__ = ["DONE", "client_of", "json_reply", "sse"]

DONE = "[DONE]"


def client_of(request: Request) -> str:
    """Who asks, as the gate knows it."""
    return str(getattr(request.state, "client", ""))


def json_reply(content: Mapping[str, Any]) -> Response:
    """A body that is JSON already checked to be plain, which FastAPI would look through once more."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), media_type="application/json")


def sse(request: Request, chunks: AsyncIterator[Mapping[str, Any]], held: AsyncExitStack) -> EventStream:
    """A stream of chunks that ends with [DONE]; an error on the way is the last event.

    `held` is closed when the stream ends, or the client is gone.
    """

    async def events() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield event(chunk)
            yield event(DONE)
        except Exception as error:
            yield event(error_body(of_exception(error), request.url.path))

    return EventStream(events(), held)
