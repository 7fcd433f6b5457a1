"""Shapes: the facts about one value, merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from woolly.errors import RequestError
from woolly.grammar.schema.budget import tick
from woolly.grammar.schema.facts import (
    Alternative,
    Conjunction,
    Contains,
    Count,
    Exists,
    Fact,
    Item,
    Kind,
    Matching,
    Multiple,
    Names,
    NumberBound,
    Openness,
    Others,
    Presence,
    Property,
    Tail,
    TextIn,
    Unique,
    Values,
)
from woolly.grammar.schema.language import ANY, NOTHING, Language, both, is_empty, literal, matches, negate, union
from woolly.grammar.schema.numbers import Numbers

if TYPE_CHECKING:
    from woolly.grammar.schema.expand import Expander

MAX_CELLS = 100
MAX_PATTERNS = 40  # of one object; each two of them are compared
MAX_TEXTS = 6  # patterns, formats and lengths of one string: their automata multiply
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Strings:
    """Strings of a language, or a finite set of them."""

    language: Language
    values: frozenset[str] | None = None

    def as_language(self) -> Language:
        """Return the strings as a language."""
        return self.language if self.values is None else union(map(literal, sorted(self.values)))


@dataclass(frozen=True)
class Member:
    """Property with a known name."""

    name: str
    child: Conjunction
    is_required: bool


@dataclass(frozen=True)
class Cell:
    """Properties with any name of a language."""

    language: Language
    child: Conjunction


@dataclass(frozen=True)
class ObjectShape:
    """Members in order, then members with other names."""

    members: tuple[Member, ...]
    cells: tuple[Cell, ...]
    low: int
    high: int | None
    exists: tuple[Exists, ...]


@dataclass(frozen=True)
class ArrayShape:
    """Items of known positions, then any number of other items."""

    prefix: tuple[Conjunction, ...]
    tail: Conjunction
    low: int
    high: int | None
    contains: tuple[Contains, ...]
    unique: Unique | None


def contradicts(facts: Alternative, kind: str) -> bool:
    """Return True if facts plainly exclude each other."""
    if kind == "boolean":
        return not booleans(facts)
    if kind == "number":
        return numbers(facts) is None
    if kind == "string":
        return _finite(facts) == frozenset()
    low, high = _count(facts)
    if high is not None and low > high:
        return True
    seen: dict[str, bool] = {}
    return any(seen.setdefault(fact.name, fact.is_there) != fact.is_there for fact in _of(facts, Presence))


def booleans(facts: Alternative) -> frozenset[bool]:
    """Return the possible booleans."""
    left = frozenset([True, False])
    for fact in _of(facts, Values):
        left = left & fact.values if fact.is_positive else left - fact.values
    return left


def numbers(facts: Alternative) -> Numbers | None:
    """Return the possible numbers; None if there are none."""
    found = Numbers()
    for fact in facts:
        if isinstance(fact, Kind):
            if found.kind not in ("any", fact.name):
                return None
            found = replace(found, kind=fact.name)
        elif isinstance(fact, Multiple):
            found = replace(found, multiples=(*found.multiples, fact.value))
        elif isinstance(fact, Values):
            values = frozenset(value for value in fact.values if isinstance(value, Decimal))
            if not fact.is_positive:
                found = replace(found, excluded=found.excluded | values)
            else:
                found = replace(found, values=values if found.values is None else found.values & values)
        elif isinstance(fact, NumberBound):
            found = _bounded(found, fact)
    return found.normal()


def _bounded(found: Numbers, fact: NumberBound) -> Numbers:
    if fact.is_low:
        if found.low is None or fact.value > found.low or (fact.value == found.low and fact.is_open):
            return replace(found, low=fact.value, low_open=fact.is_open)
    elif found.high is None or fact.value < found.high or (fact.value == found.high and fact.is_open):
        return replace(found, high=fact.value, high_open=fact.is_open)
    return found


def strings(facts: Alternative) -> Strings | None:
    """Return the possible strings; None if there are none."""
    finite = _finite(facts)
    languages = dict.fromkeys(fact.language for fact in _of(facts, TextIn))
    if len(languages) > MAX_TEXTS:
        raise RequestError(
            f"the JSON schema combines {len(languages)} patterns, formats and lengths for one string; the maximum is"
            f" {MAX_TEXTS}"
        )
    language = both(languages)
    if finite is not None:
        kept = frozenset(text for text in finite if matches(language, text))
        return Strings(ANY, kept) if kept else None
    excluded = sorted({text for fact in _of(facts, Values) for text in fact.values if isinstance(text, str)})
    if excluded:
        language = both([language, negate(union(map(literal, excluded)))])
    return None if language == NOTHING or is_empty(language) else Strings(language)


def _finite(facts: Alternative) -> frozenset[str] | None:
    """Return the strings of all Values, before languages are regarded; None if any other is possible."""
    left: frozenset[str] | None = None
    excluded: set[str] = set()
    for fact in _of(facts, Values):
        texts = frozenset(value for value in fact.values if isinstance(value, str))
        if fact.is_positive:
            left = texts if left is None else left & texts
        else:
            excluded |= texts
    return None if left is None else left - excluded


def text_language(x: Expander, conjunction: Conjunction) -> Language | None:
    """Return the strings that meet a condition as one language; None if there are none."""
    found = [text for option in x.alternatives(conjunction, "string") if (text := strings(option)) is not None]
    return union(text.as_language() for text in found) if found else None


def finite_texts(x: Expander, conjunction: Conjunction) -> list[str] | None:
    """Return the strings that meet a condition, in the order of the schema; None if there are too many to list."""
    texts: dict[str, None] = {}
    for option in x.alternatives(conjunction, "string"):
        found = strings(option)
        if found is None:
            continue
        if found.values is None:
            return None
        texts |= dict.fromkeys(sorted(found.values))
    return list(texts)


class Children:
    """Conditions on the values of names."""

    def __init__(self, facts: Alternative) -> None:
        self._named: dict[str, set[tuple[int, bool]]] = {}
        for fact in _of(facts, Property):
            self._named.setdefault(fact.name, set()).update(fact.child)
        self._matching = [fact for fact in _of(facts, Matching) if fact.child]
        self._others = [fact for fact in _of(facts, Others) if fact.child]

    def of(self, name: str) -> Conjunction:
        """Return the condition on the value of a name."""
        child = set(self._named.get(name, ()))
        for fact in self._matching:
            if matches(fact.language, name):
                child |= fact.child
        for other in self._others:
            if name not in other.names and not any(matches(language, name) for language in other.languages):
                child |= other.child
        return frozenset(child)


def object_shape(x: Expander, facts: Alternative) -> ObjectShape | None:
    """Return the shape of an object; None if there is none."""
    presence: dict[str, bool] = {}
    for fact in _of(facts, Presence):
        if presence.setdefault(fact.name, fact.is_there) != fact.is_there:
            return None
    names = dict.fromkeys(fact.name for fact in _of(facts, Property))
    names |= dict.fromkeys(name for name, is_there in presence.items() if is_there)
    allowed = [fact.child for fact in _of(facts, Names)]
    condition = frozenset(pair for child in allowed for pair in child)
    texts = finite_texts(x, condition) if condition else None
    if texts is not None:
        names |= dict.fromkeys(texts)
    spelled = text_language(x, condition) if condition else ANY
    members = []
    children = Children(facts)
    for name in names:
        child = children.of(name)
        is_there = presence.get(name, False)
        is_possible = presence.get(name, True) and spelled is not None and (spelled is ANY or matches(spelled, name))
        is_possible = is_possible and not _is_false(x, child)
        if is_there and not is_possible:
            return None
        if is_possible:
            members.append(Member(name, child, is_there))
    taken = dict.fromkeys([*names, *presence])
    is_closed = any(not fact.is_open for fact in _of(facts, Openness)) and not any(
        fact.is_open for fact in _of(facts, Openness)
    )
    cells: tuple[Cell, ...] = ()
    if texts is None and spelled is not None:
        cells = _cells(x, facts, taken, spelled, children, is_closed)
    low, high = _count(facts)
    return ObjectShape(tuple(members), cells, low, high, tuple(_of(facts, Exists)))


def _cells(
    x: Expander, facts: Alternative, taken: Iterable[str], spelled: Language, children: Children, is_closed: bool
) -> tuple[Cell, ...]:
    """Return the other names, apart by the languages that match them.

    In a closed object, some language matches each name.
    """
    if is_closed and not any(isinstance(fact, Matching) for fact in facts):
        return ()
    languages = dict.fromkeys(
        language
        for fact in facts
        if isinstance(fact, (Matching, Others))
        for language in ([fact.language] if isinstance(fact, Matching) else fact.languages)
    )
    excluded: dict[str, None] = dict.fromkeys(taken)
    for rest in _of(facts, Others):
        excluded |= dict.fromkeys(sorted(rest.names))
    if len(languages) > MAX_PATTERNS:
        raise RequestError(
            f"the JSON schema has too many patternProperties for one object: {len(languages)}; the maximum is"
            f" {MAX_PATTERNS}"
        )
    own = union(map(literal, taken))
    others = [name for name in excluded if name not in dict.fromkeys(taken)]
    parts: list[tuple[Language, frozenset[Language]]] = [(both([spelled, negate(own)]), frozenset())]
    for language in languages:
        split = []
        for part, inside in parts:
            tick()
            for piece, kept in (
                (both([part, language]), inside | {language}),
                (both([part, negate(language)]), inside),
            ):
                if piece != NOTHING and not is_empty(piece):
                    split.append((piece, kept))
        parts = split
        if len(parts) > MAX_CELLS:
            raise RequestError(
                f"the JSON schema has too many patternProperties that overlap; the maximum is {MAX_CELLS} combinations"
            )
    cells = []
    for part, inside in parts:
        if is_closed and not inside:
            continue
        named = [name for name in others if matches(part, name)]
        if named:
            part = both([part, negate(union(map(literal, named)))])
        child: set[tuple[int, bool]] = set()
        for fact in facts:
            if (isinstance(fact, Matching) and fact.language in inside) or (
                isinstance(fact, Others) and not inside.intersection(fact.languages)
            ):
                child |= fact.child
        if not _is_false(x, frozenset(child)):
            cells.append(Cell(part, frozenset(child)))
        for name in named:
            found = children.of(name)
            if not _is_false(x, found):
                cells.append(Cell(literal(name), found))
    return tuple(cells)


def array_shape(facts: Alternative) -> ArrayShape | None:
    """Return the shape of an array; None if there is none."""
    low, high = _count(facts)
    items, tails = list(_of(facts, Item)), list(_of(facts, Tail))
    n = max([0, *(item.position + 1 for item in items), *(tail.start for tail in tails)])
    prefix: list[set[tuple[int, bool]]] = [set() for _ in range(n)]
    for item in items:
        prefix[item.position] |= item.child
    for tail in tails:
        for position in range(tail.start, n):
            prefix[position] |= tail.child
    rest = frozenset(pair for tail in tails for pair in tail.child)
    contains = tuple(fact for fact in _of(facts, Contains) if fact.low or fact.high is not None)
    unique = next(iter(_of(facts, Unique)), None)
    if high is not None and low > high:
        return None
    return ArrayShape(tuple(map(frozenset, prefix)), rest, low, high, contains, unique)


def _is_false(x: Expander, child: Conjunction) -> bool:
    return (x.false.index, True) in child or any(x.node(index).schema is (not sign) for index, sign in child)


def _count(facts: Alternative) -> tuple[int, int | None]:
    low, high = 0, None
    for fact in _of(facts, Count):
        low = max(low, fact.low)
        if fact.high is not None:
            high = fact.high if high is None else min(high, fact.high)
    return low, high


def _of(facts: Iterable[Fact], kind: type[Kept]) -> Iterable[Kept]:
    return (fact for fact in facts if isinstance(fact, kind))
