"""Who asks: Ole gets lists wrapped, others the bare value."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection


def is_ole(connection: HTTPConnection) -> bool:
    """Whether the request comes from Ole, which says so by a header or in its user agent."""
    return "x-ole-client" in connection.headers or "Ole" in connection.headers.get("user-agent", "")


def wrapped(connection: HTTPConnection, items: list[Any]) -> Any:
    """A list as the client wants it."""
    return {"success": True, "data": items} if is_ole(connection) else items
