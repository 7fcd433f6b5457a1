"""The EventStream: a reply of server-sent events that gives its request up however it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from woolly.serving.errors import error_body, of_exception

__all__ = ["EventStream", "event", "stream_of"]

# Not no-store: Chromium gives up the request of a script that reads such a stream to its end, and logs it as failed.
_HEADERS = {"Cache-Control": "private, no-cache"}


def event(data: Any) -> bytes:
    """One event: its JSON, or a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode("utf-8", "replace")


class EventStream(StreamingResponse):
    """Events of a request that is under way; `held` is closed when the last one is sent or the client is gone.

    A client that leaves before the first event never lets the events' own code begin, so that it could not clean up.
    """

    def __init__(self, events: AsyncIterator[bytes], held: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events. The gate watches for a client that leaves, so that no second task need do it here."""
        async with self._held:
            await self.stream_response(send)


def stream_of(request: Request, events: AsyncIterator[bytes], held: AsyncExitStack) -> EventStream:
    """Streams events; an error on the way is the last one, in the words of the dialect. `held` as in EventStream."""

    async def told() -> AsyncIterator[bytes]:
        try:
            async for one in events:
                yield one
        except Exception as error:
            yield event(error_body(of_exception(error), request.url.path))

    return EventStream(told(), held)
