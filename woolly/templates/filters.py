"""Filters, tests and functions for chat templates. Each charges the render budget before it runs.

Names and meanings are those of Jinja; `from_json` is additional. Only functions used in the templates of current model
families, and a few similar functions, are available. Jinja's other functions (`center`, `escape`, `random`, `cycler`,
...) are not available. A prompt is not HTML, so no function returns `Markup`, and `safe` returns plain text. Filters
that are lazy in Jinja return an iterator over a complete list, so that no uncharged work remains in a generator.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jinja2 import filters as jinja_filters
from jinja2 import pass_context, pass_environment
from jinja2 import tests as jinja_tests
from jinja2.environment import Environment
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace

from woolly.errors import TemplateError
from woolly.templates.methods import METHODS, Bound, Function, replace, splitlines
from woolly.templates.render_budget import (
    MAX_DEPTH,
    NUMBERS,
    ListIterator,
    charged_iterable,
    charged_list,
    check_key,
    hold,
    join_texts,
    spend,
    text_bytes,
    text_of,
    weigh,
)

_TIME_FORMAT = re.compile(r"(?:[^%\x00]|%-?[A-Za-z%]){0,200}")
_MAX_NUMBER_TEXT = 300
_MAX_MESSAGE = 2000


def _as_text(name: str) -> Function:
    method = METHODS[str][name]
    return lambda value, *args: method(text_of(value), *args)


def _indent(value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    value = text_of(value)
    step = len(width) if type(width) is str else width
    hold(text_bytes(value) + 4 * (len(splitlines(value)) + 1) * max(step, 0))
    return jinja_filters.do_indent(value, width, first, blank)


def _replace(value: Any, old: Any, new: Any, count: Any = None) -> str:
    return replace(text_of(value), text_of(old), text_of(new), -1 if count is None else count)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    value = _listed(value)
    n_values, n_bytes = weigh(value)
    step = len(indent) if isinstance(indent, str) else indent or 0
    if step > 32:
        raise ValueError("tojson indents by at most 32 characters")
    gaps = sum(text_bytes(text_of(gap)) for gap in separators) if separators else 2
    depth = _depth(value) if step > 0 else 0
    spend(2 * n_values)
    # An escape such as \u0001 has six characters.
    hold(6 * n_bytes + n_values * (32 + gaps + step * depth))
    return json.dumps(
        value, ensure_ascii=bool(ensure_ascii), indent=indent, separators=separators, sort_keys=bool(sort_keys)
    )


def _listed(value: Any, depth: int = 0) -> Any:
    """Return `value` with iterators, as returned by `map` and `select`, converted to lists for JSON."""
    if type(value) is ListIterator:
        value = charged_list(value)
    if depth < MAX_DEPTH and type(value) in (list, tuple, dict):
        items = value.values() if type(value) is dict else value
        spend(len(value))
        if any(type(item) is ListIterator or type(item) in (list, tuple, dict) for item in items):
            hold(80 * len(value))
            if type(value) is dict:
                return {key: _listed(item, depth + 1) for key, item in value.items()}
            return [_listed(item, depth + 1) for item in value]
    return value


def _from_json(value: Any) -> Any:
    if type(value) is not str:
        raise TypeError(f"from_json needs a string, not {type(value).__name__!r}")
    spend(2 * len(value))
    hold(64 * len(value))  # worst case: the 7 characters {"":0}, become a dict of 232 bytes
    made = json.loads(value, parse_int=_json_int)
    weigh(made)
    return made


def _json_int(digits: str) -> int:
    return int(_int(digits))


def _depth(value: Any) -> int:
    """Return the nesting depth of `value`. The caller must have charged for the walk."""
    depth, level = 0, [value]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if type(item) in (list, tuple):
                below.extend(item)
            elif type(item) is dict:
                below.extend(item.values())
        level = below
    return depth


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if type(value) not in NUMBERS and not isinstance(value, Undefined):
        raise TypeError(f"a number is needed, not {type(value).__name__!r}")
    if not -300 <= precision <= 300:
        raise ValueError("round takes a precision from -300 to 300")
    return jinja_filters.do_round(value, precision, method)  # type: ignore[arg-type]


def _int(value: Any, default: Any = 0, base: Any = 10) -> Any:
    if type(value) is str and len(value) > _MAX_NUMBER_TEXT:
        raise ValueError(f"a number has at most {_MAX_NUMBER_TEXT} characters")
    return jinja_filters.do_int(value, default, base)


def _pay_lookup(values: list[Any], attribute: Any) -> None:
    spend(len(values) * (8 + (len(attribute) if type(attribute) is str else 0)))


def _pay_ordering(value: Any, attribute: Any = None) -> list[Any]:
    """Return the elements of `value` as a list, after charging for the comparisons needed to sort them."""
    values = charged_list(value)
    n_values, n_bytes = weigh(values)
    _pay_lookup(values, attribute)
    spend((4 * n_values + (n_bytes >> 4)) * len(values).bit_length())
    hold(2 * n_bytes)
    return values


@pass_environment
def _sort(
    environment: Environment,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> Any:
    return jinja_filters.do_sort(environment, _pay_ordering(value, attribute), reverse, case_sensitive, attribute)


def _extreme(function: Function) -> Function:
    @pass_environment
    def run(environment: Environment, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
        return function(environment, _pay_ordering(value, attribute), case_sensitive, attribute)

    return run


def _dictsort(value: Any, case_sensitive: bool = False, by: Any = "key", reverse: bool = False) -> Any:
    if type(value) is not dict:
        raise TypeError(f"dictsort needs a mapping, not {type(value).__name__!r}")
    _pay_ordering(value.items())
    return jinja_filters.do_dictsort(value, case_sensitive, by, reverse)


@pass_environment
def _unique(environment: Environment, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
    values = _pay_ordering(value, attribute)
    key_of = jinja_filters.make_attrgetter(
        environment, attribute, postprocess=None if case_sensitive else jinja_filters.ignore_case
    )
    firsts: dict[Any, Any] = {}
    for item in values:
        firsts.setdefault(check_key(key_of(item)), item)
    return iter(list(firsts.values()))


@pass_environment
def _join(environment: Environment, value: Any, d: Any = "", attribute: Any = None) -> str:
    values = charged_list(value)
    if attribute is not None:
        _pay_lookup(values, attribute)
        values = [*map(jinja_filters.make_attrgetter(environment, attribute), values)]
    return join_texts(map(text_of, values), text_of(d))


@pass_environment
def _first(environment: Environment, value: Any) -> Any:
    for item in charged_iterable(value, 0):
        return item
    return environment.undefined("No first item, sequence was empty.")


def _reverse(value: Any) -> Any:
    if type(value) is str:
        hold(text_bytes(value))
        return value[::-1]
    return iter(charged_list(value)[::-1])


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Undefined):
        return iter([])
    if type(value) is not dict:
        raise TypeError("Can only get item pairs from a mapping.")
    return iter(charged_list(value.items()))


@pass_context
def _map(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    weigh((args, kwargs))
    if not value:
        return iter([])
    values = charged_list(value)
    _pay_lookup(values, kwargs.get("attribute"))
    function = jinja_filters.prepare_map(context, args, kwargs)
    return iter([function(item) for item in values])


def _selecting(wanted: bool, by_attribute: bool) -> Function:
    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        weigh((args, kwargs))
        if not value:
            return iter([])
        values = charged_list(value)
        _pay_lookup(values, args[0] if by_attribute and args else None)
        keeps = jinja_filters.prepare_select_or_reject(
            context, args, kwargs, lambda truth: bool(truth) is wanted, by_attribute
        )
        return iter([item for item in values if keeps(item)])

    return run


FILTERS: dict[str, Function] = {
    **{name: _as_text(name) for name in ("capitalize", "lower", "upper")},
    "count": len,
    "d": jinja_filters.do_default,
    "default": jinja_filters.do_default,
    "dictsort": _dictsort,
    "first": _first,
    "from_json": _from_json,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": jinja_filters.do_last,
    "length": len,
    "list": charged_list,
    "map": _map,
    "max": _extreme(jinja_filters.do_max),
    "min": _extreme(jinja_filters.do_min),
    "reject": _selecting(False, False),
    "rejectattr": _selecting(False, True),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": text_of,
    "select": _selecting(True, False),
    "selectattr": _selecting(True, True),
    "sort": _sort,
    "string": text_of,
    "tojson": _tojson,
    "trim": lambda value, chars=None: METHODS[str]["strip"](text_of(value), chars),
    "unique": _unique,
}


def within(container: Any) -> Any:
    """Return the right operand of `in`, an iterator as a list, after charging for comparisons with all elements."""
    if type(container) is ListIterator:
        container = charged_list(container)
    weigh(container)
    return container


def _comparing(function: Function) -> Function:
    def run(value: Any, *args: Any) -> Any:
        weigh(value)
        return function(value, *map(within, args))

    return run


_JINJA_TESTS: dict[str, Any] = dict(jinja_tests.TESTS)
_PLAIN_TESTS = (
    *("boolean", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"),
    *("sequence", "string", "true", "undefined"),
)
_COMPARING_TESTS = ("==", "eq", "equalto", "!=", "ne", "in")

TESTS: dict[str, Function] = {
    **{name: _JINJA_TESTS[name] for name in _PLAIN_TESTS},
    **{name: _comparing(_JINJA_TESTS[name]) for name in _COMPARING_TESTS},
}


def _raise_exception(_: None, /, message: Any = "no reason given") -> None:
    raise TemplateError(f"the chat template rejects the conversation: {text_of(message)[:_MAX_MESSAGE]}")


def _strftime_now(_: None, /, form: str) -> str:
    if not _TIME_FORMAT.fullmatch(form):
        raise ValueError("strftime_now takes a short format of plain % letters")
    return datetime.now().strftime(form)


def _dict(_: None, /, pairs: Any = (), **values: Any) -> dict[Any, Any]:
    made = pairs.items() if type(pairs) is dict else pairs
    return {**{check_key(key): value for key, value in charged_list(made)}, **values}


def _namespace(_: None, /, pairs: Any = (), **values: Any) -> Namespace:
    spend(32)
    return Namespace(_dict(None, pairs, **values))


FUNCTIONS: dict[str, Bound] = {
    "dict": Bound(_dict),
    "namespace": Bound(_namespace),
    "raise_exception": Bound(_raise_exception),
    "range": Bound(lambda _, *args: safe_range(*args)),
    "strftime_now": Bound(_strftime_now),
}
