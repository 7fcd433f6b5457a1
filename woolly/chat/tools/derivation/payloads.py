"""Payloads of calls in rendered text: JSON objects, names with JSON, Python, and unquoted objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.chat.tools.derivation.probe import KEYS, VALUES
from woolly.chat.tools.unquoted_json import QUOTE


@dataclass(frozen=True)
class CallSpan:
    """Payload of a call in rendered text: an object, or name and arguments, without markers."""

    start: int
    end: int
    parts: tuple[str, ...]  # strings before the name, between name and arguments, and after the arguments


@dataclass(frozen=True)
class Payloads:
    """Payloads of calls, and their format."""

    name: str
    spans: tuple[CallSpan, ...]
    group: tuple[str, str, str] | None = None  # brackets of an array around all payloads, and the separator
    keys: tuple[str, str] = ("name", "arguments")  # keys of an object


def find_objects(body: str, calls: list[tuple[str, Any]]) -> Payloads | None:
    """Return JSON objects that contain a name and arguments, or the arguments with the name as key."""
    decoder = json.JSONDecoder()
    spans: list[CallSpan] = []
    at, is_keyed, group, keys = 0, False, None, ("name", "arguments")
    for name, arguments in calls:
        found = None
        until = body.find(name, at)
        for start in (match.start() for match in re.finditer(r"\{", body[:until])):
            if start < at:
                continue
            try:
                value, end = decoder.raw_decode(body, start)
            except ValueError:
                continue
            if isinstance(value, dict) and _is_call(value, name, arguments):
                found = start, end
                is_keyed = value.keys() == {name}
                keys = _keys(value, name, arguments) or keys
                break
        if found is None:
            return None
        payload = body[found[0] : found[1]]
        parts = _parts(payload, name, arguments)
        if parts is None and f'\\"{KEYS[0]}' in payload:
            parts = ("", "", "")  # arguments as a JSON string, which models also write as an object
        if parts is None:
            return None
        spans.append(CallSpan(*found, parts))
        at = found[1]
    before, after = body[: spans[0].start], body[spans[-1].end :]
    if before.rstrip().endswith("[") and after.lstrip().startswith("]"):
        i, j = before.rindex("["), len(after) - len(after.lstrip()) + 1
        between = body[spans[0].end : spans[1].start] if len(spans) > 1 else ", "
        group = (before[i:], between, after[:j])
    return Payloads("keyed" if is_keyed else "object", tuple(spans), group, keys)


def _is_call(value: Mapping[str, Any], name: str, arguments: Any) -> bool:
    if value.get(name) == arguments:
        return True
    return _keys(value, name, arguments) is not None


def _keys(value: Mapping[str, Any], name: str, arguments: Any) -> tuple[str, str] | None:
    """Return the keys of the name and the arguments, which may be JSON text; None if one is missing."""
    inner = value.get("function")
    fields = inner if isinstance(inner, dict) else value
    named = next((key for key, one in fields.items() if one == name), None)
    given = next((key for key, one in fields.items() if one == arguments or _decoded(one) == arguments), None)
    return None if named is None or given is None else (named, given)


def _decoded(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _parts(payload: str, name: str, arguments: Any) -> tuple[str, str, str] | None:
    """Return the strings around name and arguments of a payload, or None if name or arguments are not JSON."""
    at = payload.rfind(name, 0, payload.find(KEYS[0]))
    begin = at + len(name)
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", payload[begin:]):
        try:
            value, end = decoder.raw_decode(payload, begin + match.start())
        except ValueError:
            continue
        if value == arguments:
            return payload[:at], payload[begin : begin + match.start()], payload[end:]
    return None


def find_labels(body: str, calls: list[tuple[str, Any]]) -> Payloads | None:
    """Return names followed by arguments as JSON."""
    spans: list[CallSpan] = []
    for i, (name, arguments) in enumerate(calls):
        key = body.find(VALUES[i][0])
        at = body.rfind(name, 0, key)
        parts = _parts(body[at:], name, arguments) if at >= 0 else None
        if parts is None:
            return None
        spans.append(CallSpan(at, len(body) - len(parts[2]), ("", parts[1], "")))
    return Payloads("label", tuple(spans))


def find_python(body: str, calls: list[tuple[str, Any]]) -> Payloads | None:
    """Return calls written as Python."""
    spans = []
    for i, (name, _) in enumerate(calls):
        at = body.rfind(name + "(", 0, body.find(VALUES[i][0]))
        end = body.find(")", body.find(VALUES[i][1]))
        if at < 0 or end < 0 or f"{KEYS[0]}=" not in body[at:end]:
            return None
        spans.append(CallSpan(at, end + 1, ("", "", "")))
    before, after = body[: spans[0].start], body[spans[-1].end :]
    if not (before.rstrip().endswith("[") and after.lstrip().startswith("]")):
        return None
    i, j = before.rindex("["), after.index("]") + 1
    between = body[spans[0].end : spans[1].start] if len(spans) > 1 else ", "
    return Payloads("python", tuple(spans), (before[i:], between, after[:j]))


def find_unquoted(body: str, calls: list[tuple[str, Any]]) -> Payloads | None:
    """Return names followed by an object without JSON quotes."""
    spans = []
    for i, (name, _) in enumerate(calls):
        at = body.rfind(name, 0, body.find(VALUES[i][0]))
        begin, end = at + len(name), body.find("}", body.find(VALUES[i][1]))
        if at < 0 or end < 0 or not body.startswith(f"{{{KEYS[0]}:{QUOTE}{VALUES[i][0]}{QUOTE}", begin):
            return None
        spans.append(CallSpan(at, end + 1, ("", "", "")))
    return Payloads("bare", tuple(spans))
