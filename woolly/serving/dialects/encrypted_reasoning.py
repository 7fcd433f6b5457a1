"""Opaque encoding of reasoning, which clients send back unchanged."""

from __future__ import annotations

import base64
import binascii

_OURS = b"woolly:"  # prefix of this server's encoded reasoning


def encode_reasoning(thought: str) -> str:
    """Encode reasoning."""
    return base64.b64encode(_OURS + thought.encode("utf-8", "replace")).decode()


def decode_reasoning(sealed: str | None) -> str:
    """Decode reasoning encoded by this server. Returns "" for text from other servers."""
    try:
        data = base64.b64decode(sealed or "", validate=True)
    except (binascii.Error, ValueError):
        return ""
    return data.removeprefix(_OURS).decode("utf-8", "replace") if data.startswith(_OURS) else ""
