"""Nodes of GBNF expressions, and walks over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

LAST_CHARACTER = 0x10FFFF


@dataclass(frozen=True)
class Literal:
    """Literal text."""

    text: str


@dataclass(frozen=True)
class Characters:
    """Character of a set: sorted ranges with inclusive ends, which do not overlap or touch."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Reference:
    """Reference to another rule."""

    name: str


@dataclass(frozen=True)
class Concat:
    """Concatenation of items; without items, the empty string."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Alternatives:
    """Alternation of several options."""

    options: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """Repetition of an item, at least `low` and at most `high` times (None: no maximum)."""

    item: Expression
    low: int
    high: int | None


@dataclass(frozen=True)
class Lexeme:
    """Regular expression that the lexer matches as a unit. Created by `find_lexemes`, not by the parser."""

    expression: Expression


Expression = Literal | Characters | Reference | Concat | Alternatives | Repeat | Lexeme


def children(item: Expression) -> tuple[Expression, ...]:
    """Return the children of a node. A lexeme is a unit without children."""
    if isinstance(item, Concat):
        return item.items
    if isinstance(item, Alternatives):
        return item.options
    return (item.item,) if isinstance(item, Repeat) else ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all nodes below it. Not recursive, because groups may be nested deeply."""
    waiting = [expression]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += children(item)


def references(expression: Expression) -> Iterator[str]:
    """Yield the names of rules used in an expression."""
    return (item.name for item in walk(expression) if isinstance(item, Reference))


def closure(rules: dict[str, Expression], holds: Callable[[Expression, set[str]], bool]) -> set[str]:
    """Return the least fixed point: add rules to the set until `holds(rule, set)` adds none."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, rule in rules.items():
        for used in set(references(rule)):
            users[used].append(name)
    found: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and holds(rules[name], found):
            found.add(name)
            waiting += users[name]
    return found
