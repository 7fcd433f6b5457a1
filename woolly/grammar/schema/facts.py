"""Facts: conditions on one value of a known type, to which the keywords of a schema are reduced.

A list of alternatives describes the values of a schema: each is a tuple of facts that all hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from woolly.grammar.schema.language import Language

Conjunction = frozenset[tuple[int, bool]]  # nodes by index: True if the value satisfies it, False if it must not
ANYTHING: Conjunction = frozenset()


@dataclass(frozen=True)
class Values:
    """The value is one of these (booleans, numbers or strings), or is none of them."""

    values: frozenset[bool | Decimal | str]
    is_positive: bool = True


@dataclass(frozen=True)
class NumberBound:
    """The number is at least (or at most) a value."""

    value: Decimal
    is_low: bool
    is_open: bool


@dataclass(frozen=True)
class Kind:
    """The number is an integer, or is none."""

    name: str  # integer or fraction


@dataclass(frozen=True)
class Multiple:
    """The number is a multiple."""

    value: Fraction


@dataclass(frozen=True)
class TextIn:
    """The string is in a language."""

    language: Language


@dataclass(frozen=True)
class Count:
    """The array or object has a number of members."""

    low: int
    high: int | None


@dataclass(frozen=True)
class Item:
    """The item at a position, if there is one, meets a condition."""

    position: int
    child: Conjunction
    is_seen: bool = True  # evaluated for the unevaluated... keywords


@dataclass(frozen=True)
class Tail:
    """All items from a position on meet a condition."""

    start: int
    child: Conjunction
    is_seen: bool = True  # evaluated for the unevaluated... keywords


@dataclass(frozen=True)
class Contains:
    """A number of items from a position on meet a condition, and no others if there is a maximum."""

    start: int
    child: Conjunction
    opposite: Conjunction
    low: int
    high: int | None
    is_seen: bool = True  # evaluated for the unevaluated... keywords


@dataclass(frozen=True)
class Unique:
    """No two items are equal."""

    pointer: str


@dataclass(frozen=True)
class Property:
    """The value of a name, if it is there, meets a condition."""

    name: str
    child: Conjunction
    is_seen: bool = True  # evaluated for the unevaluated... keywords


@dataclass(frozen=True)
class Presence:
    """A name is there, or is not."""

    name: str
    is_there: bool


@dataclass(frozen=True)
class Matching:
    """The values of all names of a language meet a condition."""

    language: Language
    child: Conjunction
    is_seen: bool = True  # evaluated for the unevaluated... keywords


@dataclass(frozen=True)
class Others:
    """The values of all names but these, and but those of these languages, meet a condition."""

    names: frozenset[str]
    languages: tuple[Language, ...]
    child: Conjunction
    is_seen: bool = True  # evaluated for the unevaluated... keywords


@dataclass(frozen=True)
class Names:
    """All names, as strings, meet a condition."""

    child: Conjunction


@dataclass(frozen=True)
class Exists:
    """Some name in a set has a value that meets a condition.

    The set holds all names that are in `inside`, and neither among `names` nor in `outside`.
    """

    names: frozenset[str]
    inside: Language
    outside: tuple[Language, ...]
    child: Conjunction


@dataclass(frozen=True)
class Openness:
    """The schema declares properties (False), or says what other properties are allowed (True)."""

    is_open: bool


Fact = (
    Values | NumberBound | Kind | Multiple | TextIn | Count | Item | Tail | Contains | Unique | Property | Presence
    | Matching | Others | Names | Exists | Openness
)  # fmt: skip
Alternative = tuple[Fact, ...]
Alternatives = list[Alternative]


def without_annotations(alternative: Alternative) -> Alternative:
    """Return the same facts, of a schema that failed or a constant: they evaluate no property and no item."""
    return tuple(
        replace(fact, is_seen=False)
        if isinstance(fact, (Item, Tail, Contains, Property, Matching, Others)) and fact.is_seen
        else fact
        for fact in alternative
    )
