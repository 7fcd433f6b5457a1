"""Description of the answer's schema in the system message, which improves the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from woolly.chat.message import Message

_INTRODUCTION = "Answer with JSON that follows this schema:\n"


def add_schema(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """Return the conversation with a JSON schema at the end of its system message, which is added if it is missing."""
    shown = {name: value for name, value in schema.items() if not name.startswith("x-")}  # without x-whitespace
    text = _INTRODUCTION + json.dumps(shown, ensure_ascii=False, default=dict)
    if messages and messages[0].role in ("system", "developer"):
        first = messages[0]
        return [replace(first, content=f"{first.text}\n\n{text}" if first.text else text), *messages[1:]]
    return [Message("system", text), *messages]
