"""ElementScanner: parses a call whose arguments are nested elements named by their keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from woolly.chat.tools.json_calls import Status, Unread
from woolly.chat.tools.values import is_text, to_json, typed_json

if TYPE_CHECKING:
    from woolly.chat.tools.tagged_calls import Tags

_ITEM = "item"  # of an array


class ElementScanner(Unread):
    """Returns the arguments when the call ends, because incomplete arrays and objects look alike."""

    def __init__(self, tags: Tags, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """`schemas` maps tool names to the schemas of their arguments."""
        super().__init__()
        self.name: str | None = None
        self._tags = tags.read
        self._schemas = schemas
        self._text = ""

    def push(self, character: str) -> Status:
        """Take the next character."""
        self._text += character
        begin, after = self._tags.name
        text = self._text.lstrip()
        if not begin.startswith(text) and not text.startswith(begin):
            return Status.FAILED
        if not self._text.endswith(self._tags.end):
            return Status.OPEN
        name, found, body = text[len(begin) : -len(self._tags.end)].partition(after)
        if not found:
            return Status.FAILED
        value = self._element(body, self._schemas.get(name, {}))
        if body.strip() and not value.startswith("{"):
            # The end tag is part of a value, unless another call begins.
            return Status.FAILED if begin and begin in body else Status.OPEN
        self.name = name
        self._unread.append(value if value.startswith("{") else "{}")
        return Status.DONE

    def _element(self, body: str, schema: object) -> str:
        """Return the content of an element as JSON."""
        children = self._children(body)
        schema = schema if isinstance(schema, Mapping) else {}
        if not children:
            if body.strip() or is_text(schema):
                return typed_json(body, schema)
            kind = schema.get("type")
            return "[]" if kind == "array" else "{}" if kind in ("object", None) else typed_json(body, schema)
        if schema.get("type") == "array" or ("type" not in schema and {key for key, _ in children} == {_ITEM}):
            return f"[{', '.join(self._element(inner, schema.get('items')) for _, inner in children)}]"
        properties = schema.get("properties")
        known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        pairs = (f"{to_json(key)}: {self._element(inner, known.get(key))}" for key, inner in children)
        return f"{{{', '.join(pairs)}}}"

    def _children(self, body: str) -> list[tuple[str, str]]:
        """Return the elements of a string by key, or an empty mapping if the string contains anything else."""
        begin, finish = self._tags.key[0], self._tags.value[1].partition("{key}")[0]
        found = []
        at = 0
        while match := re.compile(rf"\s*{re.escape(begin)}([^<>/]+){re.escape(self._tags.key[1])}").match(body, at):
            key, depth, end = match[1], 1, match.end()
            for mark in re.compile(rf"({re.escape(finish)}|{re.escape(begin)}){re.escape(key)}>").finditer(body, end):
                depth += 1 if mark[1] == begin else -1
                # A value may contain its end tag, which text follows there.
                behind = body[mark.end() :].lstrip()
                if not depth and behind and not behind.startswith(begin):
                    depth = 1
                if not depth:
                    found.append((key, body[end : mark.start()]))
                    at = mark.end()
                    break
            else:
                return []  # the element has no end
        return found
