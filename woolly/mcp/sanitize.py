"""Sanitizes text from MCP servers: replaces control and invisible characters, which could mislead a user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_DESCRIPTION = 2_000  # maximum characters of a description, because each is part of every prompt

# Control characters become visible symbols (ESC: ␛). C1 controls and bidirectional marks, which have no symbol, become
# �.
_SHOWN = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_SHOWN |= dict.fromkeys(
    (*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "�"
)
_SHOWN[0x7F] = "␡"


def sanitize_text(text: str, most: int | None = None) -> str:
    """Return the text with visible control characters, truncated to `most` characters."""
    shown = text.replace("\r\n", "\n").translate(_SHOWN)
    return shown if most is None or len(shown) <= most else f"{shown[:most]}…"


def sanitize_schema(schema: Any) -> Any:
    """Return a JSON schema with sanitized, truncated descriptions."""
    if isinstance(schema, Mapping):
        return {
            key: sanitize_text(value, MAX_DESCRIPTION)
            if key in ("description", "title") and isinstance(value, str)
            else sanitize_schema(value)
            for key, value in schema.items()
        }
    return [sanitize_schema(value) for value in schema] if isinstance(schema, list) else schema
