"""Who asks: Ole gets lists wrapped, others the bare value; and each client its own sessions."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection

__all__ = ["client_of", "is_ole", "owner_of", "wrapped"]


def is_ole(connection: HTTPConnection) -> bool:
    """Whether the request comes from Ole, which says so by a header or in its user agent."""
    return "x-ole-client" in connection.headers or "Ole" in connection.headers.get("user-agent", "")


def wrapped(connection: HTTPConnection, items: list[Any]) -> Any:
    """A list as the client wants it."""
    return {"success": True, "data": items} if is_ole(connection) else items


def client_of(connection: HTTPConnection) -> str:
    """The name under which the limits know the client."""
    return str(getattr(connection.state, "client", ""))


def owner_of(connection: HTTPConnection) -> str:
    """Whose sessions a client sees: those of its key, or of its key's user. Without keys all are one."""
    return str(getattr(connection.state, "owner", ""))
