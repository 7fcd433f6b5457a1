"""Who asks: Ole gets lists wrapped, others the bare value; and each client its own sessions."""

from __future__ import annotations

import hashlib
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
    """Whose sessions a client sees: those of its user or key. Without keys all are one.

    A key is known by a digest that outlives a restart, which the name in the log does not.
    """
    client = client_of(connection)
    if not client.startswith("key:"):
        return client if client.startswith("user:") else ""
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    key = value.strip() if kind.lower() == "bearer" else connection.headers.get("x-api-key", "")
    return "key:" + hashlib.blake2b(key.encode(), digest_size=16, person=b"woolly session").hexdigest()
