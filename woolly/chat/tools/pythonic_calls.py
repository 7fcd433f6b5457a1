"""PythonScanner: parses a call written as Python: name(key=value, ...)."""

from __future__ import annotations

from collections.abc import Callable

from woolly.chat.tools.json_calls import Status, Unread
from woolly.chat.tools.values import python_json, to_json

_SPACE = frozenset(" \t\r\n")
_MAX_NAME = 256


class PythonScanner(Unread):
    """Streams the arguments as JSON, each when it is complete. A call is recognized by its first key or its end."""

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        """`accepts` returns True for valid tool names."""
        super().__init__()
        self.name: str | None = None
        self._accepts = accepts
        self._state = self._in_name
        self._name = ""
        self._key = ""
        self._value: list[str] = []
        self._quote = ""
        self._escaped = False
        self._may_close = False  # a quote was read, which ends the string if the following text allows it
        self._depth = 0
        self._n_keys = 0

    def push(self, character: str) -> Status:
        """Process the next character."""
        status = self._state(character)
        if status is Status.FAILED and self.name is not None:
            self._unread.append("}")
            return Status.BROKEN
        return status

    def rest(self) -> str:
        """Return nothing: a value that is cut off becomes the beginning of a JSON string."""
        text = "".join(self._value).lstrip()
        if self._state == self._in_value and text:
            is_quoted = text[0] in "\"'"
            self._unread.append(to_json(text[1:])[:-1] if is_quoted else text)
        self._value.clear()
        return ""

    def _in_name(self, c: str) -> Status:
        if c == "(" and self._name and self._accepts(self._name):
            self._state = self._in_key
            return Status.OPEN
        self._name += c
        return Status.OPEN if _is_name(c) and len(self._name) <= _MAX_NAME else Status.FAILED

    def _in_key(self, c: str) -> Status:
        if c == ")" and not self._key:
            return self._finish()
        if c == "=" and self._key.strip():
            self.name = self._name
            self._unread.append(("{" if self._n_keys == 0 else ", ") + to_json(self._key.strip()) + ": ")
            self._n_keys += 1
            self._key = ""
            self._state = self._in_value
            return Status.OPEN
        if c not in _SPACE or self._key:
            self._key += c
        return Status.OPEN if (_is_name(c) or c in _SPACE) and len(self._key) <= _MAX_NAME else Status.FAILED

    def _in_value(self, c: str) -> Status:
        if self._may_close and c not in _SPACE:
            self._may_close = False
            if c in ",)]}:":
                self._quote = ""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif c == "\\":
                self._escaped = True
            elif c == self._quote:
                self._may_close = True
        elif c in "\"'":
            self._quote = c
        elif c in "([{":
            self._depth += 1
        elif self._depth and c in ")]}":
            self._depth -= 1
        elif not self._depth and c in ",)":
            self._unread.append(python_json("".join(self._value)))
            self._value.clear()
            self._state = self._in_key
            return self._finish() if c == ")" else Status.OPEN
        self._value.append(c)
        return Status.OPEN

    def _finish(self) -> Status:
        self.name = self._name
        self._unread.append("}" if self._n_keys else "{}")
        return Status.DONE


def _is_name(c: str) -> bool:
    return c.isalnum() or c in "_-."
