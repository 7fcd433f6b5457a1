"""BETWEEN PROCESSES: messages over a connection, framed, authenticated and without code in them."""

from woolly.wire.accepting import accepted
from woolly.wire.connection import Connection, LostConnection, RefusedConnection
from woolly.wire.message import BadMessage, Message

__all__ = ["BadMessage", "Connection", "LostConnection", "Message", "RefusedConnection", "accepted"]
