"""Operators and methods of plain values for chat templates. Each charges the render budget before it runs.

`METHODS` and `PROPERTIES` are allow-lists by exact type: templates cannot use anything else. They contain what the
templates of current model families use, and similar methods that need no additional code.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any

from jinja2.runtime import LoopContext, Undefined

from woolly.templates.render_budget import (
    MAX_BITS,
    NUMBERS,
    charged_list,
    check_key,
    hold,
    join_texts,
    spend,
    text_bytes,
    text_of,
    weigh,
)

Function = Callable[..., Any]

OPERATORS: dict[str, Function] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}

_SEQUENCES = frozenset({str, list, tuple})
_ASCII_SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
#: Searching for a string takes linear time in practice, but searching for a set of characters may take the product of
#: both lengths.
_SEARCH_CAP = 128


class Bound:
    """Sandbox function bound to a value: the only plain object that a template can call."""

    __slots__ = ("function", "target")

    def __init__(self, function: Function, target: Any = None) -> None:
        self.function = function
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the bound value."""
        return self.function(self.target, *args, **kwargs)

    def __repr__(self) -> str:
        return "<function>"


def size_of(sequence: Any) -> int:
    """Return the memory of a copy of a string, list or tuple."""
    return text_bytes(sequence) if type(sequence) is str else 8 * len(sequence)


def operate(symbol: str, left: Any, right: Any) -> Any:
    """Apply a binary operator to types that a template may combine."""
    spend(8)
    kinds = type(left), type(right)
    if kinds[0] in NUMBERS and kinds[1] in NUMBERS:
        return _calculate(symbol, left, right)
    if symbol == "+" and kinds[0] is kinds[1] and kinds[0] in _SEQUENCES:
        hold(size_of(left) + size_of(right) + 64)
        return left + right
    if symbol == "*" and kinds[0] in _SEQUENCES and kinds[1] in (int, bool):
        hold(size_of(left) * max(right, 0) + 64)
        return left * right
    if symbol == "*" and kinds[1] in _SEQUENCES and kinds[0] in (int, bool):
        return operate(symbol, right, left)
    for side in (left, right):
        if isinstance(side, Undefined):
            OPERATORS[symbol](left, right)  # raises the error that names the variable
    raise TypeError(f"{kinds[0].__name__!r} {symbol} {kinds[1].__name__!r} is not possible")


def _calculate(symbol: str, left: Any, right: Any) -> Any:
    if type(left) is not float and type(right) is not float:
        bits = int(left).bit_length(), int(right).bit_length()
        if (sum(bits) if symbol == "*" else max(bits)) > MAX_BITS:
            raise OverflowError(f"integers are limited to {MAX_BITS} bits")
    return OPERATORS[symbol](left, right)


def _search_cost(target: str, args: tuple[Any, ...], cap: int | None = _SEARCH_CAP) -> None:
    needles = sum(len(arg) for arg in args if type(arg) is str)
    spend(4 + (len(target) * (1 + (needles if cap is None else min(needles, cap))) >> 6))


def _same_size(name: str, factor: int = 1) -> Function:
    """Return a string method whose result has at most `factor` times the size of its target."""
    method = getattr(str, name)

    def run(target: str, /, *args: Any) -> Any:
        _search_cost(target, args, None)
        hold(factor * text_bytes(target) + 64)
        return method(target, *args)

    return run


def _question(name: str) -> Function:
    """Return a string method with a number or a boolean as result."""
    method = getattr(str, name)

    def run(target: str, /, *args: Any) -> Any:
        _search_cost(target, args)
        for arg in args:
            weigh(arg)
        return method(target, *args)

    return run


def _count_pieces(target: str, separator: Any, limit: Any) -> int:
    if type(separator) is str and separator:
        n_pieces = target.count(separator)
    elif target.isascii():
        n_pieces = sum(target.count(space) for space in _ASCII_SPACES)
    else:
        n_pieces = len(target) // 2
    return min(n_pieces, limit) if type(limit) is int and limit >= 0 else n_pieces


def _split(target: str, /, sep: Any = None, maxsplit: Any = -1) -> list[str]:
    _search_cost(target, (sep,))
    hold(64 * (_count_pieces(target, sep, maxsplit) + 2) + text_bytes(target))
    return target.split(sep, maxsplit)


def splitlines(target: str, /, keepends: Any = False) -> list[str]:
    """`str.splitlines`."""
    spend(4 + (len(target) >> 2))
    hold(64 * (sum(target.count(end) for end in _LINE_ENDS) + 2) + text_bytes(target))
    return target.splitlines(bool(keepends))


def replace(target: str, /, old: Any, new: Any, count: Any = -1) -> str:
    """`str.replace`."""
    _search_cost(target, (old,))
    if type(old) is str and type(new) is str:
        n_hits = target.count(old)
        if type(count) is int and count >= 0:
            n_hits = min(n_hits, count)
        n_chars = len(target) + n_hits * len(new)
        hold((1 if target.isascii() and new.isascii() else 4) * n_chars + 64)
    return target.replace(old, new, count)


def _join(target: str, /, values: Any) -> str:
    pieces = charged_list(values)
    for piece in pieces:
        if type(piece) is not str:
            raise TypeError(f"join needs strings, not {type(piece).__name__!r}")
    return join_texts(pieces, target)


class _PlainFields(Formatter):
    """Formatter for `{}`, `{0}` and `{name}`. No known template uses attributes, conversions or widths."""

    def parse(self, format_string: Any) -> Iterator[Any]:
        for piece in super().parse(format_string):
            _, field, width, conversion = piece
            if width or conversion or not (field or "x").isalnum():
                raise ValueError("format takes plain fields such as {} and {0}")
            yield piece

    def format_field(self, value: Any, format_spec: str) -> str:
        text = text_of(value)
        hold(text_bytes(text))
        return text


_FORMATTER = _PlainFields()


def _format(target: str, /, *args: Any, **kwargs: Any) -> str:
    spend(4 + len(target) + 16 * target.count("{"))
    hold(text_bytes(target))
    return _FORMATTER.vformat(target, args, kwargs)


def _get(target: dict[Any, Any], /, key: Any, default: Any = None) -> Any:
    return target.get(check_key(key), default)


def _append(target: list[Any], /, value: Any) -> None:
    """`list.append`. A template only changes its own lists: each render copies the lists of the conversation."""
    spend(4)
    hold(16)
    target.append(value)


def _pop(target: list[Any], /, index: Any = -1) -> Any:
    spend(4 + (len(target) >> 3))
    return target.pop(index)


_STRING: dict[str, Function] = {
    **{name: _same_size(name) for name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix")},
    # Case mapping may convert one character to three.
    **{name: _same_size(name, 3) for name in ("upper", "lower", "title", "capitalize")},
    **{name: _question(name) for name in ("find", "count", "startswith", "endswith")},
    "split": _split,
    "splitlines": splitlines,
    "replace": replace,
    "join": _join,
    "format": _format,
}

METHODS: dict[type, dict[str, Function]] = {
    str: _STRING,
    list: {"append": _append, "pop": _pop},
    dict: {"get": _get, "keys": dict.keys, "values": dict.values, "items": dict.items},
}

PROPERTIES: Mapping[type, frozenset[str]] = {
    LoopContext: frozenset(
        {"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"}
    ),
}
