"""Regular languages over Unicode text, with intersection and complement."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from woolly.errors import RequestError
from woolly.grammar.schema.budget import tick

LAST = 0x10FFFF
MAX_STEPS = 20_000  # derivatives of one question, 1 to 10 µs each
MAX_STATES = 400
MAX_NODES = 5_000

Ranges = tuple[tuple[int, int], ...]
Class = TypeVar("Class", bound=type)


def _hashed_once(cls: Class) -> Class:
    """Keep the hash of an object, which is otherwise computed from all of its parts each time."""
    compute: Callable[[Any], int] = cls.__hash__  # type: ignore[assignment]

    def keep(self: Any) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            object.__setattr__(self, "_hash", found := compute(self))
        return int(found)

    cls.__hash__ = keep  # type: ignore[assignment]
    return cls


@_hashed_once
@dataclass(frozen=True)
class Chars:
    """One character of some ranges of code points."""

    ranges: Ranges


@_hashed_once
@dataclass(frozen=True)
class Concatenation:
    """Parts in order. Without parts, the empty text."""

    parts: tuple[Language, ...]


@_hashed_once
@dataclass(frozen=True)
class Union:
    """Any of some options. Without options, no text."""

    options: tuple[Language, ...]


@_hashed_once
@dataclass(frozen=True)
class Repetition:
    """`low` to `high` times an item; None for no limit."""

    item: Language
    low: int
    high: int | None


@_hashed_once
@dataclass(frozen=True)
class Both:
    """Text of all parts."""

    parts: tuple[Language, ...]


@_hashed_once
@dataclass(frozen=True)
class Not:
    """Text that an item does not match."""

    item: Language


Language = Chars | Concatenation | Union | Repetition | Both | Not

EMPTY = Concatenation(())
NOTHING = Union(())
ANY_CHAR = Chars(((0, LAST),))
ANY = Repetition(ANY_CHAR, 0, None)


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return sorted ranges without overlaps."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def invert(ranges: Ranges) -> Ranges:
    """Return all code points outside of ranges."""
    out, begin = [], 0
    for low, high in merge(ranges):
        if low > begin:
            out.append((begin, low - 1))
        begin = high + 1
    return tuple([*out, (begin, LAST)] if begin <= LAST else out)


def literal(text: str) -> Language:
    """Return the language of one text."""
    return concat(Chars(((ord(char), ord(char)),)) for char in text)


def length(low: int, high: int | None) -> Language:
    """Return all text with a number of characters."""
    return repeat(ANY_CHAR, low, high)


def concat(parts: Iterable[Language]) -> Language:
    """Return the concatenation of parts, simplified."""
    flat: list[Language] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat += part.parts if isinstance(part, Concatenation) else [part]
    return flat[0] if len(flat) == 1 else Concatenation(tuple(flat))


def union(options: Iterable[Language]) -> Language:
    """Return any of the options, simplified."""
    flat: dict[Language, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options) if isinstance(option, Union) else {option: None})
    if ANY in flat:
        return ANY
    chars = [option for option in flat if isinstance(option, Chars)]
    if len(chars) > 1:
        joined = Chars(merge(pair for item in chars for pair in item.ranges))
        flat = {joined: None} | {option: None for option in flat if not isinstance(option, Chars)}
    return next(iter(flat)) if len(flat) == 1 else Union(tuple(flat))


def repeat(item: Language, low: int, high: int | None) -> Language:
    """Return repetitions of an item, simplified."""
    if high == 0 or item in (EMPTY, NOTHING):
        return EMPTY if high == 0 or low == 0 or item == EMPTY else NOTHING
    if (low, high) == (1, 1):
        return item
    if isinstance(item, Repetition) and item.high is None and item.low <= 1 and high is None and low <= 1:
        return Repetition(item.item, item.low * low, None)
    return Repetition(item, low, high)


def both(parts: Iterable[Language]) -> Language:
    """Return the intersection of parts, simplified."""
    flat: dict[Language, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts) if isinstance(part, Both) else {part: None})
    flat.pop(ANY, None)
    if NOTHING in flat:
        return NOTHING
    if not flat:
        return ANY
    return next(iter(flat)) if len(flat) == 1 else Both(tuple(flat))


def negate(item: Language) -> Language:
    """Return the complement of a language, simplified."""
    if isinstance(item, Not):
        return item.item
    if item in (ANY, NOTHING):
        return NOTHING if item == ANY else ANY
    return Not(item)


@lru_cache(20_000)
def nullable(item: Language) -> bool:
    """Return True if a language contains the empty text."""
    if isinstance(item, Chars):
        return False
    if isinstance(item, (Concatenation, Both)):
        return all(map(nullable, item.parts))
    if isinstance(item, Union):
        return any(map(nullable, item.options))
    if isinstance(item, Repetition):
        return item.low == 0 or nullable(item.item)
    return not nullable(item.item)


@lru_cache(20_000)
def derive(item: Language, code: int) -> Language:
    """Return the rest of a language after one character."""
    if isinstance(item, Chars):
        return EMPTY if any(low <= code <= high for low, high in item.ranges) else NOTHING
    if isinstance(item, Concatenation):
        options: list[Language] = []
        for i, part in enumerate(item.parts):
            options.append(concat([derive(part, code), *item.parts[i + 1 :]]))
            if not nullable(part):
                break
        return union(options)
    if isinstance(item, Union):
        return union(derive(option, code) for option in item.options)
    if isinstance(item, Repetition):
        low, high = max(item.low - 1, 0), None if item.high is None else item.high - 1
        return concat([derive(item.item, code), repeat(item.item, low, high)])
    if isinstance(item, Both):
        return both(derive(part, code) for part in item.parts)
    return negate(derive(item.item, code))


def matches(item: Language, text: str) -> bool:
    """Return True if a language contains a text."""
    for char in text:
        tick()
        item = derive(item, ord(char))
        if item in (NOTHING, ANY):
            return item == ANY
        if size(item) > MAX_NODES:
            raise RequestError("the JSON schema has a pattern that is too costly to compare with a value")
    return nullable(item)


@lru_cache(2_000)
def is_empty(item: Language, max_states: int = MAX_STATES) -> bool | None:
    """Return True if a language has no text; None if this takes too many states."""
    if _is_full(item):
        return False
    codes = _representatives(item)
    seen, waiting, steps = {item}, [item], 0
    while waiting:
        state = waiting.pop()
        if nullable(state):
            return False
        for code in codes:
            steps += 1
            tick()
            after = derive(state, code)
            if after == NOTHING or after in seen:
                continue
            if len(seen) > max_states or steps > MAX_STEPS or size(after) > MAX_NODES:
                return None
            if _is_full(after):
                return False
            seen.add(after)
            waiting.append(after)
    return True


def size(item: Language) -> int:
    """Return the number of nodes."""
    found = item.__dict__.get("_size")
    if found is None:
        object.__setattr__(item, "_size", found := 1 + sum(map(size, children(item))))
    return int(found)


def children(item: Language) -> tuple[Language, ...]:
    """Return the direct parts of a language."""
    if isinstance(item, (Concatenation, Both)):
        return item.parts
    if isinstance(item, Union):
        return item.options
    return (item.item,) if isinstance(item, (Repetition, Not)) else ()


def all_chars(item: Language) -> Iterable[Chars]:
    """Yield the character classes of a language."""
    waiting = [item]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Chars):
            yield node
        waiting += children(node)


def is_plain(item: Language) -> bool:
    """Return True if a language needs neither intersection nor complement."""
    if isinstance(item, (Both, Not)):
        return False
    return all(map(is_plain, children(item)))


def _is_full(item: Language) -> bool:
    """Return True if a language plainly has some text."""
    if isinstance(item, Union):
        return any(map(_is_full, item.options))
    if isinstance(item, Concatenation):
        return all(map(_is_full, item.parts))
    if isinstance(item, Repetition):
        return item.low == 0 or _is_full(item.item)
    if isinstance(item, Not):
        return _is_finite(item.item)
    return isinstance(item, Chars) and bool(item.ranges)


def _is_finite(item: Language) -> bool:
    """Return True if a language plainly has a limited number of characters in its texts."""
    if isinstance(item, Repetition):
        return item.high is not None and _is_finite(item.item)
    return not isinstance(item, Not) and all(map(_is_finite, children(item)))


def _representatives(item: Language) -> list[int]:
    """Return one character of each class that a language tells apart."""
    edges = {0}
    for chars in all_chars(item):
        for low, high in chars.ranges:
            edges |= {low, high + 1}
    return sorted(edge for edge in edges if edge <= LAST)
