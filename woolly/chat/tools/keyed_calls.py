"""KeyedScanner: parses a call written as an object that maps the tool's name to the arguments."""

from __future__ import annotations

import json
from collections.abc import Callable

from woolly.chat.tools.json_calls import ObjectScanner, Status, Unread

_SPACE = frozenset(" \t\r\n")
_MAX_NAME = 256


class KeyedScanner(Unread):
    """Streams the characters of the arguments. A call is recognized when its arguments begin."""

    def __init__(self, accepts: Callable[[str], bool]) -> None:
        """`accepts` returns True for valid tool names."""
        super().__init__()
        self.name: str | None = None
        self._accepts = accepts
        self._head = ""
        self._object = ObjectScanner()
        self._has_ended = False

    def push(self, character: str) -> Status:
        """Process the next character."""
        if self._has_ended:
            if character in _SPACE:
                return Status.OPEN
            return Status.DONE if character == "}" else Status.BROKEN
        if self.name is not None:
            self._unread.append(character)
            self._has_ended = self._object.push(character)
            return Status.OPEN
        if character == "{" and self._head.rstrip().endswith(":"):
            name = self._named()
            if name is None or not self._accepts(name):
                return Status.FAILED
            self.name = name
            self._unread.append(character)
            self._object.push(character)
            return Status.OPEN
        self._head += character
        return Status.OPEN if len(self._head) <= _MAX_NAME else Status.FAILED

    def _named(self) -> str | None:
        try:
            value = json.loads(self._head + "0}")
        except ValueError:
            return None
        return next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
