"""Encrypted reasoning: opaque text that clients send back unchanged."""

from __future__ import annotations

import base64
import binascii

_OURS = b"woolly:"  # prefix of this server's encoded reasoning


def encode_reasoning(thought: str) -> str:
    """Return reasoning as encoded text."""
    return base64.b64encode(_OURS + thought.encode("utf-8", "replace")).decode()


def decode_reasoning(sealed: str | None) -> str:
    """Return the reasoning of a text encoded by this server; "" for another server's."""
    try:
        data = base64.b64decode(sealed or "", validate=True)
    except (binascii.Error, ValueError):
        return ""
    return data.removeprefix(_OURS).decode("utf-8", "replace") if data.startswith(_OURS) else ""
