"""History of recent requests for administrators (--keep-requests)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

# Results of the current request's answers; None outside of a request.
answer_log: ContextVar[list[dict[str, Any]] | None] = ContextVar("woolly_answers", default=None)

# Body fields, at the top level or in items of _LISTS, with keywords of an API. Elsewhere, such as in tool inputs,
# fields with the same names may have private text.
_WORDS = frozenset(
    {"model", "role", "type", "tool_choice", "reasoning_effort", "effort", "service_tier", "encoding_format", "format"}
)
_LISTS = ("messages", "content", "tools")
_MAX_TEXT_LENGTH = 8192  # characters per string
_MAX_WORD_LENGTH = 200
_MAX_ITEMS = 200  # items per list or object
_MAX_VALUES = 5000  # values per body
_MAX_ANSWERS = 64


class RequestHistory:
    """The newest `n` requests, without texts unless `with_texts` is set.

    Use this class only on the event loop thread.
    """

    def __init__(self, n: int, with_texts: bool) -> None:
        self._with_texts = with_texts
        self._history: deque[dict[str, Any]] = deque(maxlen=n)

    @property
    def is_on(self) -> bool:
        """True if requests are recorded."""
        return bool(self._history.maxlen)

    def add(self, scope: Mapping[str, Any], state: MutableMapping[str, Any], status: int, ms: float) -> None:
        """Record a finished request."""
        if not self.is_on or "json" not in state:
            return
        body = None if isinstance(state["json"], Exception) else state["json"]
        self._history.append(
            {
                "id": state["id"],
                "time": time.time() - ms / 1000,
                "client": state["client"],
                "method": scope.get("method"),
                "path": scope["path"][:200],
                "status": status,
                "ms": ms,
                "reason": state["reason"],
                "ignored": list(state["ignored"]),
                "answers": list(state["answers"]),
                "body": redacted(body, with_texts=self._with_texts),
            }
        )

    def all(self) -> list[dict[str, Any]]:
        """Return the requests without their bodies, newest first."""
        return [{name: value for name, value in one.items() if name != "body"} for one in reversed(self._history)]

    def get(self, id: str) -> dict[str, Any] | None:
        """Return the newest request with an id, or None if it is not recorded."""
        return next((one for one in reversed(self._history) if one["id"] == id), None)


def record_answer(noted: list[dict[str, Any]] | None, **fields: Any) -> None:
    """Record the result of an answer in `noted`, the value of `answer_log` when the answer began."""
    if noted is not None and len(noted) < _MAX_ANSWERS:
        noted.append(fields)


def redacted(value: Any, *, with_texts: bool) -> Any:
    """Replace strings and token ids in JSON with their lengths, except keywords of the API.

    The size of the result is bounded in any case.
    """
    left = [_MAX_VALUES]

    def walk(value: Any, *, is_word: bool = False, has_words: bool = False) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return "..."
        if isinstance(value, str):
            most = _MAX_TEXT_LENGTH if with_texts else _MAX_WORD_LENGTH
            if with_texts or is_word:
                return value if len(value) <= most else f"{value[:most]}... ({len(value)} characters)"
            return f"({len(value)} characters)"
        if isinstance(value, Mapping):
            return {
                str(key)[:_MAX_WORD_LENGTH]: walk(
                    one,
                    is_word=has_words and key in _WORDS,
                    has_words=has_words and key in _LISTS and isinstance(one, (list, tuple)),
                )
                for key, one in list(value.items())[:_MAX_ITEMS]
            }
        if isinstance(value, (list, tuple)):
            if not with_texts and any(isinstance(one, int) and not isinstance(one, bool) for one in value):
                return f"({len(value)} values)"  # token ids are text, too
            return [walk(one, has_words=has_words) for one in value[:_MAX_ITEMS]]
        return value

    return walk(value, has_words=True)
