"""The operators and the methods of plain values that a chat template may use, each paid for before it runs.

`METHODS` and `PROPERTIES` are allow-lists by exact type: what is not in them does not exist for a template.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.environment import Environment
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Cycler

from woolly.text.sandbox_budget import (
    MAX_BITS,
    NUMBERS,
    check_key,
    hold,
    join_texts,
    paid_list,
    spend,
    text_bytes,
    text_of,
    weigh,
)

__all__ = [
    "METHODS",
    "OPERATORS",
    "PROPERTIES",
    "Bound",
    "Function",
    "add_formatting",
    "operate",
    "percent",
    "replace",
    "size_of",
    "splitlines",
]

Function = Callable[..., Any]

OPERATORS: dict[str, Function] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "%": operator.mod,
}

_SEQUENCES = frozenset({str, list, tuple})
_DIGITS = re.compile(r"\d+")
_ASCII_SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
#: Searches from the left are linear; from the right, and for sets of characters, they may cost the product.
_SEARCH_CAP = 128


class Bound:
    """A function of the sandbox, with the value that it is a method of; the only plain thing a template can call."""

    __slots__ = ("function", "target")

    def __init__(self, function: Function, target: Any = None) -> None:
        self.function = function
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on its value."""
        return self.function(self.target, *args, **kwargs)

    def __repr__(self) -> str:
        return "<function>"


def size_of(sequence: Any) -> int:
    """The memory that a copy of a string, list or tuple takes."""
    return text_bytes(sequence) if type(sequence) is str else 8 * len(sequence)


def operate(symbol: str, left: Any, right: Any) -> Any:
    """One binary operator on the types that a template may combine."""
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
    if symbol == "%" and kinds[0] is str:
        return percent(left, right)
    for side in (left, right):
        if isinstance(side, Undefined):
            OPERATORS[symbol](left, right)  # raises the error that names the variable
    raise TypeError(f"{kinds[0].__name__!r} {symbol} {kinds[1].__name__!r} is not possible")


def _calculate(symbol: str, left: Any, right: Any) -> Any:
    if type(left) is not float and type(right) is not float:
        bits = int(left).bit_length(), int(right).bit_length()
        if symbol == "*":
            n_bits = bits[0] + bits[1]
        elif symbol == "**":
            n_bits = bits[0] * max(right, 1)
        else:
            n_bits = max(bits)
        if n_bits > MAX_BITS:
            raise OverflowError(f"integers are limited to {MAX_BITS} bits")
    result = OPERATORS[symbol](left, right)
    if type(result) not in NUMBERS:
        raise ArithmeticError("the result is not a real number")
    return result


def percent(form: str, values: Any) -> str:
    """`form % values`; the widest field is bounded by any number that could be a width, wherever it stands."""
    n_values, n_bytes = weigh(values)
    n_fields = form.count("%")
    width = _widest(form)
    if "*" in form:
        stars = values if isinstance(values, tuple) else (values,)
        width = max([width, *(abs(star) for star in stars if type(star) is int)])
    n_uses = n_fields if type(values) is dict else 1
    hold(text_bytes(form) + n_fields * (4 * width + 400) + n_uses * (10 * n_bytes + 32 * n_values))
    return str(form % values)


def _widest(form: str) -> int:
    # Over ten digits are beyond any budget, and converting a long run is itself work.
    return max((int(run) if len(run) <= 10 else 10**10 for run in _DIGITS.findall(form)), default=0)


class _Formatter(SandboxedFormatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        n_values, n_bytes = weigh(value)
        hold(10 * n_bytes + 32 * n_values)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        value = value if type(value) in NUMBERS else text_of(value)
        hold(4 * _widest(format_spec) + 400 + (text_bytes(value) if type(value) is str else 0))
        return super().format_field(value, format_spec)


def _search_cost(target: str, args: tuple[Any, ...], cap: int | None = _SEARCH_CAP) -> None:
    needles = sum(len(arg) for arg in args if type(arg) is str)
    spend(4 + (len(target) * (1 + (needles if cap is None else min(needles, cap))) >> 6))


def _same_size(name: str, factor: int = 1) -> Function:
    """A string method whose result has at most `factor` times the size of its target."""
    method = getattr(str, name)

    def run(target: str, /, *args: Any) -> Any:
        _search_cost(target, args, None)
        hold(factor * text_bytes(target) + 64)
        return method(target, *args)

    return run


def _question(name: str, cap: int | None = _SEARCH_CAP) -> Function:
    """A string method that answers with a number or a truth value."""
    method = getattr(str, name)

    def run(target: str, /, *args: Any) -> Any:
        _search_cost(target, args, cap)
        for arg in args:
            weigh(arg)
        return method(target, *args)

    return run


def _padding(name: str) -> Function:
    method = getattr(str, name)

    def run(target: str, /, width: Any, *fill: Any) -> Any:
        if type(width) is int:
            hold(4 * max(width, len(target)) + 64)
        return method(target, width, *fill)

    return run


def _count_pieces(target: str, separator: Any, limit: Any) -> int:
    if type(separator) is str and separator:
        n_pieces = target.count(separator)
    elif target.isascii():
        n_pieces = sum(target.count(space) for space in _ASCII_SPACES)
    else:
        n_pieces = len(target) // 2
    return min(n_pieces, limit) if type(limit) is int and limit >= 0 else n_pieces


def _splitting(name: str) -> Function:
    method = getattr(str, name)
    cap = None if name.startswith("r") else _SEARCH_CAP

    def run(target: str, /, sep: Any = None, maxsplit: Any = -1) -> Any:
        _search_cost(target, (sep,), cap)
        hold(64 * (_count_pieces(target, sep, maxsplit) + 2) + text_bytes(target))
        return method(target, sep, maxsplit)

    return run


def splitlines(target: str, /, keepends: Any = False) -> list[str]:
    """`str.splitlines`."""
    spend(4 + (len(target) >> 2))
    hold(64 * (sum(target.count(end) for end in _LINE_ENDS) + 2) + text_bytes(target))
    return target.splitlines(bool(keepends))


def _expandtabs(target: str, /, tabsize: Any = 8) -> str:
    if type(tabsize) is int:
        hold(text_bytes(target) + 4 * target.count("\t") * max(tabsize, 0) + 64)
    return target.expandtabs(tabsize)


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
    pieces = paid_list(values)
    for piece in pieces:
        if type(piece) is not str:
            raise TypeError(f"join needs strings, not {type(piece).__name__!r}")
    return join_texts(pieces, target)


def _get(target: dict[Any, Any], /, key: Any, default: Any = None) -> Any:
    return target.get(check_key(key), default)


def _copy(target: Any, /) -> Any:
    spend(8 * len(target))
    hold(size_of(target) * 16 + 256)
    return target.copy()


def _deep_question(kind: type, name: str) -> Function:
    method = getattr(kind, name)

    def run(target: Any, /, *args: Any) -> Any:
        weigh(target)
        for arg in args:
            n_values, n_bytes = weigh(arg)
            spend(len(target) * n_values)
            hold(4 * n_bytes + 32 * n_values)  # the error of `index` quotes it
        return method(target, *args)

    return run


def _changed(target: LoopContext, /, *values: Any) -> bool:
    weigh(values)
    return target.changed(*values)


_STRING: dict[str, Function] = {
    **{name: _same_size(name) for name in ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix")},
    # Case mapping makes up to three characters of one.
    **{name: _same_size(name, 3) for name in ("upper", "lower", "title", "capitalize", "casefold", "swapcase")},
    **{name: _same_size(name, 2) for name in ("partition", "rpartition")},
    **{name: _question(name) for name in dir(str) if name.startswith("is")},
    **{name: _question(name) for name in ("find", "index", "count", "startswith", "endswith")},
    **{name: _question(name, None) for name in ("rfind", "rindex")},
    **{name: _padding(name) for name in ("center", "ljust", "rjust", "zfill")},
    **{name: _splitting(name) for name in ("split", "rsplit")},
    "splitlines": splitlines,
    "expandtabs": _expandtabs,
    "replace": replace,
    "join": _join,
}

METHODS: dict[type, dict[str, Function]] = {
    str: _STRING,
    list: {**{name: _deep_question(list, name) for name in ("index", "count")}, "copy": _copy},
    tuple: {name: _deep_question(tuple, name) for name in ("index", "count")},
    dict: {"get": _get, "copy": _copy, "keys": dict.keys, "values": dict.values, "items": dict.items},
    LoopContext: {"cycle": LoopContext.cycle, "changed": _changed},
    Cycler: {"next": Cycler.next, "reset": Cycler.reset},
}

PROPERTIES: Mapping[type, frozenset[str]] = {
    LoopContext: frozenset(
        {
            *("index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"),
            *("previtem", "nextitem"),
        }
    ),
    Cycler: frozenset({"current"}),
}


def add_formatting(environment: Environment) -> dict[str, Function]:
    """`str.format` and `str.format_map`, whose fields look values up as a template of `environment` does."""
    formatter = _Formatter(environment)

    def form(target: str, /, *args: Any, **kwargs: Any) -> str:
        spend(16 * target.count("{"))
        hold(text_bytes(target))
        return formatter.vformat(target, args, kwargs)

    def form_map(target: str, /, mapping: Any) -> str:
        if type(mapping) is not dict:
            raise TypeError("format_map needs a mapping")
        return form(target, **{text_of(key): value for key, value in mapping.items()})

    return {"format": form, "format_map": form_map}
