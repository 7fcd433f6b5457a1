"""TagScanner: parses a call written as tags, with one pair of tags per argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from woolly.chat.tools.json_calls import Status
from woolly.chat.tools.values import is_text, to_json, typed_json

_SPACE = frozenset(" \t\r\n")
_MAX_NAME = 256


@dataclass(frozen=True)
class Tags:
    """Strings before and after each part of a call. Whitespace between parts is ignored when parsing."""

    name: tuple[str, str]
    key: tuple[str, str]
    value: tuple[str, str]
    end: str  # after the last argument
    has_lines: bool = False  # a value is on separate lines
    types: tuple[tuple[str, str], ...] = ()  # string before a value of each type, instead of value[0]
    quote: tuple[str, str] = ("", "")  # quotes around a string with markup characters
    is_element: bool = False  # the key is the tag: value[1] contains {key}, and lists and objects are nested elements

    @property
    def read(self) -> Tags:
        """Return the strings without surrounding whitespace, for parsing."""
        name, key, value = ((first.strip(), last.strip()) for first, last in (self.name, self.key, self.value))
        types = tuple((kind, text.strip()) for kind, text in self.types)
        return replace(self, name=name, key=key, value=value, end=self.end.strip(), types=types)


class TagScanner:
    """Reads name, keys and values. Streams JSON: strings by character, other values when they are complete.

    A call is recognized when its first key or its end begins.
    """

    def __init__(self, tags: Tags, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """`schemas` maps tool names to the schemas of their arguments."""
        self._tags = tags = tags.read
        self._schemas = schemas
        self._buffer = ""
        self._expected: dict[str, Callable[[], None]] = {}
        self._state = self._in_name
        self._name = ""
        self._key = ""
        self._schema: object = None
        self._value: list[str] = []
        self._has_begun = False  # the first character of the value was read
        self._is_done = False
        self._n_keys = 0
        self._unread: list[str] = []
        self._is_numbered = "{n}" in tags.name[1]
        self._is_text = False  # the value is a string
        self._end = tags.value[1]
        self.name: str | None = None
        self.id: str | None = None
        if tags.name[0]:
            self._expect({tags.name[0]: self._begin_name})

    def take(self) -> str:
        """Return the characters of the arguments since the last `take`. Valid after `name` is set."""
        text = "".join(self._unread)
        self._unread.clear()
        return text

    def push(self, character: str) -> Status:
        """Process the next character."""
        if not self._state(character):
            if self.name is None:
                return Status.FAILED
            self._unread.append("}")
            return Status.BROKEN
        return Status.DONE if self._is_done else Status.OPEN

    def _expect(self, expected: dict[str, Callable[[], None]]) -> None:
        self._buffer = ""
        self._expected = expected
        self._state = self._in_literal

    def _in_literal(self, c: str) -> bool:
        if not self._buffer and c in _SPACE:
            return True
        self._buffer += c
        shown = self._buffer
        if self._is_numbered and any("{n}" in text for text in self._expected):
            shown = re.sub(r"[0-9]+", "{n}", shown)
        if found := self._expected.get(shown):
            found()
            return True
        return any(text.startswith(shown) for text in self._expected)

    def _begin_name(self) -> None:
        self._state = self._in_name

    def _in_name(self, c: str) -> bool:
        if c.isalnum() or c in "_-.":
            self._name += c
            return len(self._name) <= _MAX_NAME
        if not self._name:
            return c in _SPACE
        after = self._tags.name[1]
        self._expect({after: self._after_name} if after else self._parts())
        return self._in_literal(c)

    def _after_name(self) -> None:
        self._expect(self._parts())

    def _parts(self) -> dict[str, Callable[[], None]]:
        return {self._tags.key[0]: self._begin_key, self._tags.end: self._finish}

    def _begin_key(self) -> None:
        self.name = self._name
        self._key = ""
        self._state = self._in_key

    def _in_key(self, c: str) -> bool:
        self._key += c
        if self._key.endswith(self._tags.key[1]):
            self._key = self._key.removesuffix(self._tags.key[1]).strip()
            properties = self._schemas.get(self._name, {}).get("properties")
            self._schema = properties.get(self._key) if isinstance(properties, Mapping) else None
            if self._tags.types:
                self._expect({text: partial(self._begin_value, kind) for kind, text in self._tags.types})
            elif self._tags.value[0]:
                self._expect({self._tags.value[0]: self._begin_value})
            else:
                self._begin_value()
        return len(self._key) <= _MAX_NAME

    def _begin_value(self, kind: str = "") -> None:
        self._unread.append(("{" if self._n_keys == 0 else ", ") + to_json(self._key) + ": ")
        self._n_keys += 1
        self._is_text = is_text(self._schema) or kind == "string"
        if self._is_text:
            self._unread.append('"')
        self._buffer = ""
        self._end = self._tags.value[1]
        self._value.clear()
        self._has_begun = False
        self._state = self._before_value if self._tags.quote[0] else self._in_value

    def _before_value(self, c: str) -> bool:
        """Process a possible quote before a value."""
        begin, finish = self._tags.quote
        self._buffer += c
        if self._buffer == begin:
            self._buffer = ""
            self._end = finish + self._tags.value[1]
            self._state = self._in_value
        elif not begin.startswith(self._buffer):
            held, self._buffer = self._buffer, ""
            self._state = self._in_value
            return all(self._state(character) for character in held)
        return True

    def _in_value(self, c: str) -> bool:
        end = self._end
        if not self._has_begun:
            self._has_begun = True
            if self._tags.has_lines and c == "\n":
                return True
        self._buffer += c
        if self._buffer.endswith(end):
            self._end_value()
            return True
        # A line feed before the end tag is not part of the value.
        while self._buffer and not (
            end.startswith(self._buffer) or (self._tags.has_lines and f"\n{end}".startswith(self._buffer))
        ):
            self._add(self._buffer[0])
            self._buffer = self._buffer[1:]
        return True

    def _add(self, c: str) -> None:
        if self._is_text:
            self._unread.append(to_json(c)[1:-1])
        else:
            self._value.append(c)

    def _end_value(self) -> None:
        self._unread.append('"' if self._is_text else typed_json("".join(self._value), self._schema))
        self._expect(self._parts())

    def _finish(self) -> None:
        self.name = self._name
        self._unread.append("}" if self._n_keys else "{}")
        self._is_done = True
