"""The EventStream: a reply of server-sent events that gives its request up however it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from woolly.serving.errors import error_body, of_exception
from woolly.serving.generation import Generation, Generator, Running

__all__ = ["EventStream", "event", "stream_of"]


def event(data: Any) -> bytes:
    """One event: its JSON, or a text as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode("utf-8", "replace")


class EventStream(StreamingResponse):
    """Events of a request that is under way; `held` is closed when the last one is sent or the client is gone.

    A client that leaves before the first event never lets the events' own code begin, so that it could not clean up.
    """

    def __init__(self, events: AsyncIterator[bytes], held: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        async with self._held:
            await super().__call__(scope, receive, send)


async def stream_of(
    request: Request,
    generation: Generation,
    events: Callable[[Running], AsyncIterator[bytes]],
    held: AsyncExitStack | None = None,
) -> EventStream:
    """Starts a request, so that a refusal still has its status, and streams what `events` makes of it.

    `held` is what was opened for it before. An error on the way is the last event, in the words of the dialect.
    """
    generator: Generator = request.app.state.generator
    held = held or AsyncExitStack()
    try:
        running = await held.enter_async_context(generator.open(generation))
    except BaseException:
        await held.aclose()
        raise

    async def told() -> AsyncIterator[bytes]:
        try:
            async for one in events(running):
                yield one
        except Exception as error:
            yield event(error_body(of_exception(error), request.url.path))

    return EventStream(told(), held)
