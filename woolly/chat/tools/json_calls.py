"""CallScanner: parses a call written as a JSON object, character by character."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

_SPACE = frozenset(" \t\r\n")
_NAME_KEYS = frozenset(["name", "tool_name", "function", "tool"])
_ARGUMENT_KEYS = frozenset(["arguments", "parameters", "args"])
# Without a marker, an object with any other key before the name is not a call.
_CALL_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"type", "id"}
_KNOWN_KEYS = _CALL_KEYS | {"index", "call_id", "tool_call_id"}


class Status(Enum):
    """Result of a character."""

    OPEN = auto()  # accepted; more follows
    DONE = auto()  # accepted; it was the last character
    FAILED = auto()  # rejected: this is not a call
    BROKEN = auto()  # rejected: a call with name and arguments ends as invalid JSON


class Scanner(Protocol):
    """Interface of parsers of a call, character by character. After `name` is set, nothing is revoked."""

    @property
    def name(self) -> str | None:
        """The name of the call, once it is certain to be one."""

    @property
    def id(self) -> str | None:
        """Id of the call, as written by the model."""

    def push(self, character: str) -> Status:
        """Process the next character."""

    def take(self) -> str:
        """Return the characters of the arguments since the last `take`. Valid after `name` is set."""

    def rest(self) -> str:
        """End a call that is cut off or malformed, and return the characters that are not part of its arguments."""


class ObjectScanner:
    """Tracks brackets and strings of a JSON object or array to find its closing bracket."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, character: str) -> bool:
        """Return True if this character closes the value."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth <= 0
        return False


class Unread:
    """Base of call scanners: characters of the arguments since the last `take`, and an id."""

    def __init__(self) -> None:
        self._unread: list[str] = []
        self.id: str | None = None

    def take(self) -> str:
        """Return the characters of the arguments since the last `take`. Valid after `name` is set."""
        text = "".join(self._unread)
        self._unread.clear()
        return text

    def rest(self) -> str:
        """End a call that is cut off or malformed, and return the characters that are not part of its arguments."""
        return ""


class CallScanner(Unread):
    """Reads {"name": ..., "arguments": {...}} in either order, also within {"function": {...}}.

    `name` is set when the name is accepted and the arguments begin. From then on, `take` returns new characters of the
    arguments, and nothing is revoked. Arguments written as a JSON string are decoded.
    """

    def __init__(
        self, accepts: Callable[[str], bool], *, strict: bool, names: str = "name", arguments: str = "arguments"
    ) -> None:
        """`accepts` returns True for valid tool names. With `strict`, no unknown keys may precede the name.

        `names` and `arguments` are keys of the model in addition to those that are common.
        """
        super().__init__()
        self._name_keys = _NAME_KEYS | {names}
        self._argument_keys = _ARGUMENT_KEYS | {arguments}
        self._own_keys = {names, arguments}
        self._accepts = accepts
        self._strict = strict
        self._state = self._before
        self._level = 0  # nesting level in {"function": {...}}
        self._key = ""
        self._raw: list[str] = []
        self._inner: ObjectScanner | None = None
        self._escaped = False
        self._name: str | None = None
        self._has_arguments = False
        self._has_unknown = False
        self._is_broken = False

    @property
    def name(self) -> str | None:
        """The name of the call, once it is certain to be one."""
        return self._name if self._has_arguments else None

    def push(self, character: str) -> Status:
        """Process the next character."""
        status = self._state(character)
        if status is Status.FAILED and self.name is not None:
            return Status.BROKEN
        return status

    def _before(self, c: str) -> Status:
        if c != "{":
            return Status.FAILED
        self._state = self._before_key
        return Status.OPEN

    def _before_key(self, c: str) -> Status:
        if c in _SPACE or c == ",":
            return Status.OPEN
        if c == '"':
            self._raw = [c]
            self._state = self._in_key
            return Status.OPEN
        if c != "}":
            return Status.FAILED
        if self._level:
            self._level -= 1
            return Status.OPEN
        if self._name is None:
            return Status.FAILED
        if not self._has_arguments and self._has_unknown:
            return Status.FAILED  # the arguments may have another key
        if not self._has_arguments:
            self._has_arguments = True
            self._unread.append("{}")
        return Status.DONE

    def _in_key(self, c: str) -> Status:
        if not self._string_ends(c):
            return Status.OPEN
        key = self._decoded()
        if not isinstance(key, str) or (self._strict and self.name is None and key not in _CALL_KEYS | self._own_keys):
            return Status.FAILED
        self._key = key
        self._has_unknown = self._has_unknown or key not in _KNOWN_KEYS | self._own_keys
        self._state = self._before_colon
        return Status.OPEN

    def _before_colon(self, c: str) -> Status:
        if c == ":":
            self._state = self._before_value
            return Status.OPEN
        return Status.OPEN if c in _SPACE else Status.FAILED

    def _before_value(self, c: str) -> Status:
        if c in _SPACE:
            return Status.OPEN
        self._raw = [c]
        if c == '"':
            self._state = self._in_string
        elif c in "{[":
            if c == "{" and self._key == "function" and self._level == 0 and self._name is None:
                self._level = 1
                self._state = self._before_key
                return Status.OPEN
            self._inner = ObjectScanner()
            self._inner.push(c)
            self._state = self._in_value
            if self._is_arguments():
                if c == "[":
                    return Status.FAILED
                self._unread.append(c)
                self._has_arguments = self._name is not None
                self._state = self._in_arguments
        elif c in ",}]:":
            return Status.FAILED
        else:
            self._state = self._in_scalar
        return Status.OPEN

    def _in_arguments(self, c: str) -> Status:
        assert self._inner is not None
        self._unread.append(c)
        if self._inner.push(c):
            self._state = self._before_key
        return Status.OPEN

    def _in_value(self, c: str) -> Status:
        assert self._inner is not None
        if self._inner.push(c):
            self._state = self._before_key
            if self._key in self._name_keys and self._name is None:
                return Status.FAILED
        return Status.OPEN

    def rest(self) -> str:
        """Return a string after the arguments that a line break interrupts."""
        return "".join(self._raw) if self._is_broken else ""

    def _in_string(self, c: str) -> Status:
        if c == "\n" and self.name is not None:
            self._is_broken = True
            return Status.FAILED
        if not self._string_ends(c):
            return Status.OPEN
        self._state = self._before_key
        value = self._decoded()
        if not isinstance(value, str):
            return Status.FAILED
        if self._key in self._name_keys and self._name is None:
            if not value or not self._accepts(value):
                return Status.FAILED
            self._name = value
            self._has_arguments = bool(self._unread)
        elif self._is_arguments():
            self._unread.append(value or "{}")
            self._has_arguments = self._name is not None
        return Status.OPEN

    def _in_scalar(self, c: str) -> Status:
        if c not in _SPACE and c not in ",}":
            self._raw.append(c)
            return Status.OPEN
        if self._is_arguments():
            if "".join(self._raw) != "null":
                return Status.FAILED
            self._unread.append("{}")
            self._has_arguments = self._name is not None
        elif self._key in self._name_keys and self._name is None:
            return Status.FAILED
        self._state = self._before_key
        return self._before_key(c)

    def _is_arguments(self) -> bool:
        return self._key in self._argument_keys and not self._unread and not self._has_arguments

    def _string_ends(self, c: str) -> bool:
        self._raw.append(c)
        if self._escaped:
            self._escaped = False
        elif c == "\\":
            self._escaped = True
        else:
            return c == '"'
        return False

    def _decoded(self) -> object:
        try:
            return json.loads("".join(self._raw), strict=False)
        except ValueError:
            return None
