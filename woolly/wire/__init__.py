"""Inter-process messages: framed, authenticated, without executable content."""

from woolly.wire.accept import greeted, hang_up
from woolly.wire.connection import Connection, LostConnection, RejectedConnection
from woolly.wire.link import Link
from woolly.wire.message import BadMessage, WireMessage

__all__ = [
    "BadMessage",
    "Connection",
    "Link",
    "LostConnection",
    "RejectedConnection",
    "WireMessage",
    "greeted",
    "hang_up",
]
