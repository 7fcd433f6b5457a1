r"""Terminals of Lark for JSON strings of a language.

A character has one spelling: itself, or a short escape such as \n. Only control characters without a short escape are
written as \u00XX, and only where a schema names one: a model that writes "\u00e9" would otherwise end up in "\u0001".
"""

from __future__ import annotations

import re
from functools import lru_cache

from woolly.grammar.schema.language import (
    ANY,
    LAST,
    Both,
    Chars,
    Concatenation,
    Language,
    Not,
    Repetition,
    Union,
    all_chars,
    is_plain,
    merge,
)

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\\\"}
_CONTROL = frozenset([*(code for code in range(32) if code not in _SHORT), 127])
_CONTROL_TEXT = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_SPECIAL = sorted({*range(32), 34, 92, 127})
_RAW = r"[^\x00-\x1f\x22\x5c\x7f]"
_NOTHING = r"[^\x{0}-\x{10FFFF}]"
_ANY_CHAR = rf"(?:{_RAW}|\\[bfnrt\x22\\])"
_ANY_WITH_CONTROL = rf"(?:{_RAW}|\\[bfnrt\x22\\]|\\u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|\x7f)"
STRING = rf"/\x22{_ANY_CHAR}*\x22/"


@lru_cache(500)
def quote(language: Language) -> str:
    """Return an expression of Lark for the JSON strings of a language."""
    controls = names_control(language)
    if is_plain(language):
        return rf"/\x22{_regex(language, controls)}\x22/"
    return rf"/\x22/ ({_lark(language, controls)}) /\x22/"


def has_control(text: str) -> bool:
    """Return True if a text has a control character without a short escape."""
    return _CONTROL_TEXT.search(text) is not None


def names_control(language: Language) -> bool:
    """Return True if a language has a character class of control characters alone."""
    return any(
        chars.ranges
        and all(code in _CONTROL for low, high in chars.ranges for code in (low, high))
        and all(high - low < 32 for low, high in chars.ranges)
        for chars in all_chars(language)
    )


def _lark(item: Language, controls: bool) -> str:
    if is_plain(item):
        return f"/{_regex(item, controls)}/" if item != Concatenation(()) else '""'
    if isinstance(item, Concatenation):
        return " ".join(f"({_lark(part, controls)})" for part in item.parts)
    if isinstance(item, Union):
        return " | ".join(f"({_lark(option, controls)})" for option in item.options)
    if isinstance(item, Both):
        text = [f"({_lark(part, controls)})" for part in item.parts if not isinstance(part, Not)]
        negated = [f"~({_lark(part.item, controls)})" for part in item.parts if isinstance(part, Not)]
        return " & ".join([*(text or [f"/{_regex(ANY, controls)}/"]), *negated])
    if isinstance(item, Not):
        return f"/{_regex(ANY, controls)}/ & ~({_lark(item.item, controls)})"
    assert isinstance(item, Repetition)
    return f"({_lark(item.item, controls)}){_count(item)}"


def _regex(item: Language, controls: bool) -> str:
    if isinstance(item, Chars):
        return _class(item, controls)
    if isinstance(item, Concatenation):
        return "".join(_regex(part, controls) for part in item.parts)
    if isinstance(item, Union):
        return (
            "(?:" + "|".join(_regex(option, controls) for option in item.options) + ")"
            if item.options
            else r"[^\x{0}-\x{10FFFF}]"
        )
    assert isinstance(item, Repetition)
    return f"(?:{_regex(item.item, controls)}){_count(item)}"


def _count(item: Repetition) -> str:
    if item.high is None and item.low <= 1:
        return "*" if item.low == 0 else "+"
    if (item.low, item.high) == (0, 1):
        return "?"
    return f"{{{item.low},{'' if item.high is None else item.high}}}"


def _class(item: Chars, controls: bool) -> str:
    if item.ranges == ((0, LAST),):
        return _ANY_WITH_CONTROL if controls else _ANY_CHAR
    options, inside = [], [code for code in _SPECIAL if any(low <= code <= high for low, high in item.ranges)]
    raw = _without(item.ranges, inside)
    if raw:
        options.append("[" + "".join(map(_range, raw)) + "]")
    for code in inside:
        if code in _SHORT:
            options.append(rf"\\{_SHORT[code]}" if code != 34 else r"\\\x22")
        elif controls:
            digits = "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{code:02x}")
            options.append(rf"\\u00{digits}")
            if code == 127:
                options.append(r"\x7f")
    if not options:
        return _NOTHING
    return options[0] if len(options) == 1 and raw else "(?:" + "|".join(options) + ")"


def _without(ranges: tuple[tuple[int, int], ...], codes: list[int]) -> list[tuple[int, int]]:
    out = []
    for low, high in merge(ranges):
        for code in codes:
            if low <= code <= high:
                if low < code:
                    out.append((low, code - 1))
                low = code + 1
        if low <= high:
            out.append((low, high))
    # Surrogates are no characters of UTF-8.
    return [pair for low, high in out for pair in _around_surrogates(low, high)]


def _around_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    if high < 0xD800 or low > 0xDFFF:
        return [(low, high)]
    return [pair for pair in ((low, 0xD7FF), (0xE000, high)) if pair[0] <= pair[1]]


def _range(pair: tuple[int, int]) -> str:
    low, high = pair
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


def _character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else rf"\x{{{code:x}}}"
