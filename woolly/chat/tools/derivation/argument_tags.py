"""Derivation of the tags around each argument of a call."""

from __future__ import annotations

import json
from typing import Any

from woolly.chat.tools.derivation.align import common_end, common_start, marks_in
from woolly.chat.tools.derivation.probe import KEYS, SPECIAL, TYPED, VALUES
from woolly.chat.tools.tagged_calls import Tags

_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def find_tags(body: str, calls: list[tuple[str, Any]], typed: str) -> tuple[Tags, list[tuple[int, int]]] | None:
    """Return the tags around arguments and the positions of the calls, or None if the arguments have another format."""
    spans = []
    pieces: tuple[str, ...] = ()
    for i, (name, _) in enumerate(calls):
        places = [body.find(VALUES[i][0]), body.find(VALUES[i][1])]
        keys = [body.rfind(key, 0, place) for key, place in zip(KEYS, places, strict=True)]
        at = body.rfind(name, 0, keys[0])
        if at < 0 or not at < keys[0] < places[0] < keys[1] < places[1]:
            return None
        ends = [place + len(value) for place, value in zip(places, VALUES[i], strict=True)]
        joint, after = body[ends[0] : keys[1]], body[ends[1] :]
        label = body[at + len(name) : keys[0]]
        assign = body[keys[0] + len(KEYS[0]) : places[0]]
        by_key = KEYS[0] in joint
        joint, after = joint.replace(KEYS[0], "{key}"), after.replace(KEYS[1], "{key}")
        value_end = common_start(joint, after)
        key_open = common_end(label, joint[len(value_end) :])
        if not key_open.strip() or not value_end.strip():
            return None
        spans.append((at, ends[1] + len(value_end.replace("{key}", KEYS[1]))))
        now = (label[: len(label) - len(key_open)], key_open, assign, value_end)
        pieces = pieces or now
    name_end, key_open, assign, value_end = pieces
    has_lines = assign.endswith("\n") and value_end.startswith("\n")
    types, quote = _types(typed, value_end, assign) if not by_key else ({}, ("", ""))
    if types:
        key_close, value_open = types.pop("")[0], ""
    else:
        before = key_open.lstrip() + KEYS[0]
        cuts = (match.end() - len(before) for match in marks_in(before + assign))
        cut = next((cut for cut in cuts if cut > 0), len(assign))
        key_close, value_open = assign[:cut], assign[cut:]
    tags = Tags(
        ("", _with_number(name_end, body, calls)),
        (key_open, key_close),
        (value_open, value_end),
        "",
        has_lines=has_lines,
        types=tuple((kind, text) for kind, (text,) in types.items()),
        quote=quote,
        is_element=by_key,
    )
    return tags, spans


def _with_number(text: str, body: str, calls: list[tuple[str, Any]]) -> str:
    """Return the string after a name, with `{n}` for the number of the call."""
    for digit in "01":
        other = text.replace(digit, str(int(digit) + 1))
        if digit in text and len(calls) > 1 and calls[1][0] + other in body:
            return text.replace(digit, "{n}")
    return text


def _types(typed: str, value_end: str, assign: str) -> tuple[dict[str, tuple[str]], tuple[str, str]]:
    """Return the string before a value for each type, if the format writes types. The key "" has the common start.

    The second result is the quotes around strings that contain markup characters.
    """
    found: dict[str, str] = {}
    quote = ("", "")
    for key, value in TYPED.items():
        at = typed.find(key)
        end = typed.find(value_end, at)
        if at < 0 or end < 0:
            continue
        text = typed[at + len(key) : end]
        kind = "null" if value is None else _KINDS[type(value)]
        if value == SPECIAL:
            if SPECIAL in text:
                around = text.split(SPECIAL)
                start = assign if around[0].startswith(assign) else ""
                quote = (around[0][len(start) :], around[1]) if start and around[1] else quote
            continue
        written = next((form for form in _forms(value) if text.endswith(form)), None)
        if written is not None:
            found[kind] = text[: len(text) - len(written)]
    if len(set(found.values())) < 2:
        return {}, quote
    common = found["string"]
    for text in found.values():
        while not text.startswith(common):
            common = common[:-1]
    return {"": (common,)} | {kind: (text[len(common) :],) for kind, text in found.items()}, quote


def _forms(value: Any) -> list[str]:
    dense = json.dumps(value, separators=(",", ":"))
    return [json.dumps(value), dense, repr(value), str(value), json.dumps(value, indent=2), json.dumps(value, indent=4)]
