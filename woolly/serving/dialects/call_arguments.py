"""Streamed JSON arguments of a tool call, which stay valid wherever the stream ends."""

from __future__ import annotations

import json
import re
from typing import Any

_MAX_DEPTH = 100
_MAX_NUMBER = 300  # characters; Python refuses to parse integers with thousands of digits
_CLOSERS = {"{": "}", "[": "]"}
_WORDS = ("true", "false", "null")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?)?")
_HEX = frozenset("0123456789abcdefABCDEF")


class Arguments:
    """Forwards the characters of a JSON object while they are valid, and closes open brackets at the end.

    An answer may end within a call at its token limit, and a model may generate invalid JSON, which clients could not
    parse. Control characters in strings, which JSON forbids, are escaped.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []  # open brackets
        self._state = "root"
        self._word = ""  # partial number or literal
        self._is_key = False
        self._n_hex = 0  # missing digits of a \u escape
        self._is_over = False  # closed, or invalid

    def push(self, text: str) -> str:
        """Return the valid JSON text for the next piece."""
        taken: list[str] = []
        for c in text:
            if self._is_over:
                break
            kept = self._push(c)
            if kept is None:
                self._is_over = True
            else:
                taken.append(kept)
        return "".join(taken)

    def finish(self) -> str:
        """Return the text that closes the object."""
        if self._state == "root":
            return "{}"
        end = {"value": "null", "key": '"":null', "colon": ":null"}.get(self._state, "")
        if self._state == "word":
            end = next((word[len(self._word) :] for word in _WORDS if word.startswith(self._word)), "")
            if self._word[0] not in "tfn" and not self._word[-1].isdigit():  # "-", "1.", "1e" or "1e+"
                end = "0"
        elif self._state in ("string", "escape"):
            end = ("\\" if self._state == "escape" else "0" * self._n_hex) + '"' + (":null" if self._is_key else "")
        end += "".join(_CLOSERS[one] for one in reversed(self._stack))
        self._stack.clear()
        self._state, self._is_over = "done", True
        return end

    def _push(self, c: str) -> str | None:
        """Return the character, escaped if necessary, or None if it is invalid here."""
        if self._state == "string":
            return self._in_string(c)
        if self._state == "escape":
            if c not in '"\\/bfnrtu':
                return None
            self._state = "string"
            self._n_hex = 4 if c == "u" else 0
            return c
        if self._state == "word":
            if self._continues_literal(c):
                self._word += c
                return c
            if not self._is_complete_literal():
                return None
            self._state = "after"
        if c in " \t\r\n":
            return c
        return c if self._structure(c) else None

    def _in_string(self, c: str) -> str | None:
        if self._n_hex:
            if c not in _HEX:
                return None
            self._n_hex -= 1
            return c
        if c == "\\":
            self._state = "escape"
        elif c == '"':
            self._state = "colon" if self._is_key else "after"
        elif c < " ":
            return f"\\u{ord(c):04x}"
        return c

    def _structure(self, c: str) -> bool:
        """Accept a character outside of strings and literals, and update the state.

        Return False for an invalid character.
        """
        state = self._state
        if state == "root":
            return c == "{" and self._open(c)
        if state == "colon":
            return c == ":" and self._enter("value")
        if c == '"' and state in ("key", "first key", "value", "first value"):
            self._is_key = state in ("key", "first key")
            self._state = "string"
            return True
        if c in "]}":
            inner = {"{": "first key", "[": "first value"}
            return bool(self._stack) and _CLOSERS[self._stack[-1]] == c and self._close(inner[self._stack[-1]])
        if state == "after":
            return c == "," and self._enter("key" if self._stack[-1] == "{" else "value")
        if state in ("value", "first value"):
            if c in "{[":
                return self._open(c)
            self._word, self._state = "", "word"
            if self._continues_literal(c):
                self._word = c
                return True
            self._state = state
        return False

    def _open(self, c: str) -> bool:
        if len(self._stack) == _MAX_DEPTH:
            return False
        self._stack.append(c)
        return self._enter("first key" if c == "{" else "first value")

    def _enter(self, state: str) -> bool:
        self._state = state
        return True

    def _close(self, empty: str) -> bool:
        if self._state not in ("after", empty):
            return False
        self._stack.pop()
        self._state = "after"
        if not self._stack:
            self._state, self._is_over = "done", True
        return True

    def _continues_literal(self, c: str) -> bool:
        word = self._word + c
        is_number = c.isascii() and len(word) <= _MAX_NUMBER and _NUMBER_BEGUN.fullmatch(word) is not None
        return is_number or any(one.startswith(word) for one in _WORDS)

    def _is_complete_literal(self) -> bool:
        return self._word in _WORDS or (self._word[-1].isdigit() and self._word[-1].isascii())


def arguments_object(text: str) -> dict[str, Any]:
    """Parse the arguments of a complete call."""
    arguments = Arguments()
    value: dict[str, Any] = json.loads(arguments.push(text) + arguments.finish())
    return value
