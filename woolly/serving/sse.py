"""Streaming reply with server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_MARK = "\ue000text\ue000"  # private use characters, which occur in no name or id

# With no-store, Chromium aborts the request when a script has read the complete stream, and logs it as failed.
_HEADERS = {"Cache-Control": "private, no-cache"}


def sse_event(data: Any) -> bytes:
    """Format an event; strings are sent unchanged, other values as JSON."""
    text = data if isinstance(data, str) else _ENCODER.encode(data)
    return f"data: {text}\n\n".encode("utf-8", "replace")


def named_sse_event(data: Mapping[str, Any]) -> bytes:
    """Format an event with its type as the event name, because some SDKs skip unnamed events."""
    text = _ENCODER.encode(data)
    return f"event: {data['type']}\ndata: {text}\n\n".encode("utf-8", "replace")


class TextFrame:
    """Frames that differ in one string only. The JSON around it is serialized once."""

    def __init__(self, make: Callable[[str], bytes]) -> None:
        """`make` returns the frame of a string."""
        self._before, _, self._after = make(_MARK).partition(_ENCODER.encode(_MARK).encode())

    def __call__(self, text: str) -> bytes:
        """Return the frame of a string."""
        return self._before + _ENCODER.encode(text).encode("utf-8", "replace") + self._after


class EventStreamResponse(StreamingResponse):
    """Stream of events that closes `stack` at the end or when the client disconnects.

    The iterator cannot close `stack`: if the client disconnects before the first event, the iterator never starts.
    """

    def __init__(self, events: AsyncIterator[bytes], stack: AsyncExitStack, media_type: str) -> None:
        super().__init__(events, media_type=media_type, headers=_HEADERS)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. gate/disconnect.py detects disconnects, so no second task is needed here."""
        async with self._stack:
            await self.stream_response(send)
