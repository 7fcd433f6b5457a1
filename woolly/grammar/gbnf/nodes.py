"""The nodes of a GBNF expression, and walks over them."""

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
    """One character of a set: sorted ranges with both ends included, which neither overlap nor touch."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Reference:
    """Reference to another rule."""

    name: str


@dataclass(frozen=True)
class Concat:
    """Items one after the other; without items, the empty text."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Alternatives:
    """Alternation: exactly one of several options."""

    options: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """An item at least `low` and at most `high` times; None: no upper bound."""

    item: Expression
    low: int
    high: int | None


@dataclass(frozen=True)
class Lexeme:
    """A regular expression that the lexer matches as one unit. The parser makes none; `find_lexemes` does."""

    expression: Expression


Expression = Literal | Characters | Reference | Concat | Alternatives | Repeat | Lexeme


def children(item: Expression) -> tuple[Expression, ...]:
    """Return the children of a node; empty for a lexeme, which is a unit."""
    if isinstance(item, Concat):
        return item.items
    if isinstance(item, Alternatives):
        return item.options
    return (item.item,) if isinstance(item, Repeat) else ()


def walk(expression: Expression) -> Iterator[Expression]:
    """An expression and all nodes below it. Not recursive: groups may be nested deeply."""
    waiting = [expression]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += children(item)


def references(expression: Expression) -> Iterator[str]:
    """Names of the rules that an expression refers to."""
    return (item.name for item in walk(expression) if isinstance(item, Reference))


def closure(rules: dict[str, Expression], holds: Callable[[Expression, set[str]], bool]) -> set[str]:
    """The least fixed point: grows the set of rules until `holds(rule, set)` adds none."""
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
