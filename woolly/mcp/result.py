"""ToolResult: the result of a tool as text for the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.mcp.sanitize import sanitize_text

if TYPE_CHECKING:
    from mcp.types import CallToolResult

MAX_CHARACTERS = 20_000  # about 5,000 tokens; a longer result would fill the context


@dataclass(frozen=True)
class ToolResult:
    """Text of a tool result. With `is_error`, the tool reported a failure, which the model also sees."""

    text: str
    is_error: bool = False

    @classmethod
    def of(cls, given: CallToolResult) -> ToolResult:
        """Parse the parts of a result. A note replaces each part that is not text."""
        texts = [_text_of(part) for part in given.content]
        if not texts and given.structured_content is not None:
            texts = [json.dumps(given.structured_content, ensure_ascii=False)]
        return cls(_cut(sanitize_text("\n".join(texts))), bool(given.is_error))


def _text_of(part: Any) -> str:
    kind = part.type
    if kind == "text":
        return str(part.text)
    if kind == "resource":
        text = getattr(part.resource, "text", None)
        return f"[{part.resource.uri}: not shown: not text]" if text is None else str(text)
    if kind == "resource_link":
        return f"[{part.name}: {part.uri}]"
    return f"[{kind}: not shown: only text is supported]"


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}\n[truncated to the first {MAX_CHARACTERS:,} of {len(text):,} characters]"
