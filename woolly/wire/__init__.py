"""Inter-process messages: framed, authenticated, without executable content."""

from woolly.wire.accept import greeted, hang_up
from woolly.wire.connection import Connection, LostConnection, RefusedConnection
from woolly.wire.link import Link
from woolly.wire.message import BadMessage, WireMessage

__all__ = [
    "BadMessage",
    "Connection",
    "Link",
    "LostConnection",
    "RefusedConnection",
    "WireMessage",
    "greeted",
    "hang_up",
]
