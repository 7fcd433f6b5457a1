"""Sealed thoughts: a model's reasoning as a text that clients send back untouched, even if they never show it."""

from __future__ import annotations

import base64
import binascii

_OURS = b"woolly:"  # begins each sealed text of this server


def encode_reasoning(thought: str) -> str:
    """Returns a text that holds a thought."""
    return base64.b64encode(_OURS + thought.encode("utf-8", "replace")).decode()


def decode_reasoning(sealed: str | None) -> str:
    """Returns the thought that a sealed text of this server holds; nothing for another server's."""
    try:
        data = base64.b64decode(sealed or "", validate=True)
    except (binascii.Error, ValueError):
        return ""
    return data.removeprefix(_OURS).decode("utf-8", "replace") if data.startswith(_OURS) else ""
