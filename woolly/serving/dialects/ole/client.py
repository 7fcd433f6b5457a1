"""Detection of Ole, which expects lists in an object; other clients get plain lists."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection


def is_ole(connection: HTTPConnection) -> bool:
    """Return True if the request comes from Ole, by header or user agent."""
    return "x-ole-client" in connection.headers or "Ole" in connection.headers.get("user-agent", "")


def wrapped(connection: HTTPConnection, items: list[Any]) -> Any:
    """Return a list in the client's format."""
    return {"success": True, "data": items} if is_ole(connection) else items
