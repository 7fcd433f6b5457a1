r"""Control characters of JSON schemas, which a string of JSON writes as \u0001.

llguidance drops a control character of a literal without a word unless \u escapes are allowed. With them, a free
property name may be written as "\u0061", past the schema of a declared property "a".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # \b \t \n \f \r have short escapes
_NEGATED = re.compile(r"\[\^(?:\\.|[^\]\\])*\]")
_ESCAPE = r"\\(?:[xu]\{0*([0-9a-fA-F]{1,2})\}|x([0-9a-fA-F]{2})|u00([0-9a-fA-F]{2})|(v))"
_CHARACTER = re.compile(rf"{_ESCAPE}|\\.|.", re.DOTALL)


def control_character_in(schema: dict[str, Any]) -> str | None:
    """Return the keyword of a schema whose value needs a \\u escape; None if there is none."""
    for keyword in ("const", "enum"):
        if keyword in schema and any(_CONTROL.search(text) for text in _strings(schema[keyword])):
            return keyword
    patterns = schema.get("patternProperties")
    for keyword, sources in (
        ("pattern", [schema.get("pattern")]),
        ("patternProperties", list(patterns) if isinstance(patterns, dict) else []),
    ):
        if any(isinstance(source, str) and _names_control(source) for source in sources):
            return keyword
    return None


def declares_names(schema: dict[str, Any]) -> bool:
    """Return True if a schema constrains the properties of some names."""
    return bool(schema.get("properties") or schema.get("patternProperties"))


def has_free_names(schema: dict[str, Any]) -> bool:
    """Return True if a schema explicitly allows properties of any other name."""
    if "additionalProperties" in schema:
        return schema["additionalProperties"] is not False
    return bool(schema.get("patternProperties"))


def _names_control(pattern: str) -> bool:
    """Return True if a pattern can match a control character that it names.

    A range that reaches printable characters matches those without \\u escapes.
    """
    characters = [_code(match) for match in _CHARACTER.finditer(_NEGATED.sub("", pattern))]
    i = 0
    while i < len(characters):
        low = high = characters[i]
        if characters[i + 1 : i + 2] == [ord("-")] and i + 2 < len(characters):
            high = characters[i + 2]
            i += 2
        if _is_control(low) and _is_control(high) and not low < 0x20 < high:
            return True
        i += 1
    return False


def _code(match: re.Match[str]) -> int:
    digits = next((group for group in match.groups()[:3] if group), None)
    if digits is not None:
        return int(digits, 16)
    if match[4]:
        return 0x0B
    return ord(match[0]) if len(match[0]) == 1 else -1


def _is_control(code: int) -> bool:
    return code >= 0 and _CONTROL.match(chr(code)) is not None


def _strings(value: Any) -> Iterable[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
