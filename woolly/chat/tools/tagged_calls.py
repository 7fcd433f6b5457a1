"""TagScanner: parses a call written as tags, with one pair of tags per argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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

    A call is recognized when its first value begins or when it ends.
    """

    def __init__(self, tags: Tags, schemas: Mapping[str, Mapping[str, Any]], stops: Iterable[str] = ()) -> None:
        """`schemas` maps tool names to the schemas of their arguments. `stops` are markers around calls.

        A value may contain its end tag: only an end tag that another argument, the end of the call or a marker follows
        ends the value.
        """
        self._tags = tags = tags.read
        self._stops = tuple(stop for stop in stops if stop)
        self._doubt = ""  # characters since an end tag that may be part of the value
        self._pending = ""  # characters since the last end tag
        self._is_broken = False
        self._since: list[str] = []  # characters since the last complete argument
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
        self._since.append(character)
        if not self._state(character):
            if self.name is None:
                return Status.FAILED
            self._since.pop()
            self._is_broken = True
            if self._doubt:
                self._close_early()
            self._unread.append("}" if self._n_keys else "{}")
            return Status.BROKEN
        return Status.DONE if self._is_done else Status.OPEN

    def rest(self) -> str:
        """End a call that is cut off or malformed, and return the characters that are not part of its arguments."""
        if self._state == self._in_doubt:
            self._close_early()
            self._unread.append("}")
        elif not self._is_broken:
            if self._state == self._in_value and not self._is_text:
                self._unread.append("".join(self._value) + self._buffer)
            return ""  # a tag or a value is cut off
        rest, self._since = "".join(self._since), []
        return rest

    def _close_early(self) -> None:
        """End the value at its first end tag."""
        rest, self._doubt, self._pending = self._doubt, "", ""
        self._finish_value()
        self._since = list(rest[rest.index(self._end) + len(self._end) :])

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
        self._key = ""
        self._state = self._in_key

    def _in_key(self, c: str) -> bool:
        self._key += c
        if (at := self._key.find("<")) >= 0 and not self._is_end_of_key(self._key[at:]):
            return False
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

    def _is_end_of_key(self, text: str) -> bool:
        close = self._tags.key[1]
        return any(close.startswith(text, i) for i in range(len(close)))

    def _begin_value(self, kind: str = "") -> None:
        self.name = self._name
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
            self._doubt, self._buffer, self._pending = self._buffer, "", ""
            if all(self._parts()):
                self._state = self._behind_value
            else:
                self._end_value()
            return True
        # A line feed before the end tag is not part of the value.
        while self._buffer and not (
            end.startswith(self._buffer) or (self._tags.has_lines and f"\n{end}".startswith(self._buffer))
        ):
            self._add(self._buffer[0])
            self._buffer = self._buffer[1:]
        return True

    def _behind_value(self, c: str) -> bool:
        """Check that an end tag ends the value."""
        self._doubt += c
        self._pending += c
        begun = self._pending.lstrip()
        if found := self._parts().get(begun):
            self._take_doubt(self._doubt[: len(self._doubt) - len(self._pending)])
            self._end_value()
            self._since = list(self._pending)
            found()
        elif any(stop == begun for stop in self._stops):
            self._doubt = self._doubt[:-1]
            return False
        elif not any(text.startswith(begun) for text in (*self._parts(), *self._stops)):
            self._state = self._in_doubt
        return True

    def _in_doubt(self, c: str) -> bool:
        self._doubt += c
        if self._doubt.endswith(self._end):
            self._pending = ""
            self._state = self._behind_value
        return True

    def _take_doubt(self, text: str) -> None:
        """Add the characters up to the last end tag to the value."""
        body = text[: -len(self._end)]
        if self._tags.has_lines and body.endswith("\n"):
            body = body[:-1]
        for c in body:
            self._add(c)

    def _add(self, c: str) -> None:
        if self._is_text:
            self._unread.append(to_json(c)[1:-1])
        else:
            self._value.append(c)

    def _end_value(self) -> None:
        self._doubt = ""
        self._since.clear()
        self._finish_value()
        self._expect(self._parts())

    def _finish_value(self) -> None:
        self._unread.append('"' if self._is_text else typed_json("".join(self._value), self._schema))

    def _finish(self) -> None:
        self.name = self._name
        self._unread.append("}" if self._n_keys else "{}")
        self._is_done = True
