"""The EventStreamResponse: a reply of server-sent events that releases its request however it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_MARK = "\ue000text\ue000"  # of the private use area: in no name and no id

# Not no-store: Chromium then aborts the request of a script that reads the stream to its end, and logs it as failed.
_HEADERS = {"Cache-Control": "private, no-cache"}


def sse_event(data: Any) -> bytes:
    """Return the bytes of one event: text as it is, other values as JSON."""
    text = data if isinstance(data, str) else _ENCODER.encode(data)
    return f"data: {text}\n\n".encode("utf-8", "replace")


def named_sse_event(data: Mapping[str, Any]) -> bytes:
    """Return the bytes of one event with its type as its name: some SDKs skip an event without."""
    text = _ENCODER.encode(data)
    return f"event: {data['type']}\ndata: {text}\n\n".encode("utf-8", "replace")


class TextFrame:
    """Frames that differ in one text alone: the JSON around it is written once."""

    def __init__(self, make: Callable[[str], bytes]) -> None:
        """`make` returns the frame of a text."""
        self._before, _, self._after = make(_MARK).partition(_ENCODER.encode(_MARK).encode())

    def __call__(self, text: str) -> bytes:
        """Return the frame of a text."""
        return self._before + _ENCODER.encode(text).encode("utf-8", "replace") + self._after


class EventStreamResponse(StreamingResponse):
    """Events of a running request; closes `stack` when the last one is sent or the client is gone.

    The iterator cannot close `stack` itself: if the client leaves before the first event, its code never starts.
    """

    def __init__(self, events: AsyncIterator[bytes], stack: AsyncExitStack, media_type: str) -> None:
        super().__init__(events, media_type=media_type, headers=_HEADERS)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events. The gate watches for a client that leaves (disconnect.py): no second task does it here."""
        async with self._stack:
            await self.stream_response(send)
