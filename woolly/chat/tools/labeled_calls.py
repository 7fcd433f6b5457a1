"""LabelScanner: parses a call written as a label with the tool's name, followed by an object of arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from woolly.chat.tools.json_calls import ObjectScanner, Status, Unread
from woolly.chat.tools.unquoted_json import UnquotedJson

_MAX_LABEL = 256


@dataclass(frozen=True)
class Label:
    """String before the arguments of a call. `{n}` matches a number."""

    pattern: str  # of the complete label, with the group `name` and, if the model writes an id, the group `id`
    before: str = ""  # string before the name
    after: str = ""  # string between name and arguments
    end: str = ""  # string after the arguments
    marks: tuple[str, ...] = ()  # control tokens within the call
    is_bare: bool = False  # keys and strings of the arguments have no JSON quotes


def label_pattern(before: str, after: str) -> str:
    """Return a pattern for the string before the arguments. A model may omit everything except the name."""

    def optional(text: str) -> str:
        pieces = re.split(r"(\{id\}|\{n\})", text)
        parts = []
        for piece in pieces:
            if piece in ("{id}", "{n}"):
                parts.append(r"(?P<id>[^\s<>\[\]]+?)" if piece == "{id}" else r"\d*")
            elif piece.strip():
                parts.append(rf"\s*{re.escape(piece.strip())}\s*")
        return "".join(parts)

    name = r"(?P<name>[\w.-]+)"
    if "{id}" in before:
        return rf"{optional(before)}{name}\s*{optional(after)}"
    if "{id}" in after:
        marked, _, rest = after.partition("{id}")
        return rf"\s*(?:{optional(before)})?{name}\s*(?:{optional(marked + '{id}')}\s*)?(?:{optional(rest)})?"
    if match := re.match(r"(\W*)\{n\}", after):  # a numbered name is an id
        rest = optional(after[match.end() :])
        return rf"\s*(?P<id>(?:{optional(before)})?{name}(?:{re.escape(match[1])}\d+)?)\s*{rest}"
    return rf"\s*(?:{optional(before)})?{name}\s*(?:{optional(after)})?"


class LabelScanner(Unread):
    """Reads a label up to the opening bracket of the arguments, then streams the characters of the arguments."""

    def __init__(self, label: Label) -> None:
        super().__init__()
        self.name: str | None = None
        self._pattern = label.pattern
        self._label = ""
        self._object = ObjectScanner()
        self._bare = UnquotedJson() if label.is_bare else None

    def rest(self) -> str:
        """Return nothing: a value that is cut off ends the arguments."""
        if self._bare is not None:
            self._unread.append(self._bare.rest())
        return ""

    def push(self, character: str) -> Status:
        """Process the next character."""
        if self.name is None:
            if character != "{":
                self._label += character
                return Status.OPEN if len(self._label) <= _MAX_LABEL else Status.FAILED
            match = re.fullmatch(self._pattern, self._label)
            if match is None:
                return Status.FAILED
            self.name, self.id = match["name"], match.groupdict().get("id")
        if self._bare is not None:
            self._unread.append(self._bare.push(character))
            return Status.DONE if self._bare.is_done else Status.OPEN
        self._unread.append(character)
        return Status.DONE if self._object.push(character) else Status.OPEN
