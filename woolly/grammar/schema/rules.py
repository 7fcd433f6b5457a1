"""Rules of a grammar under construction: which can produce a text, and their Lark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

Symbol = Union["Ref", "Loop", str]  # a string is an expression of Lark
Sequence = tuple[Symbol, ...]
CAPTURE = "unique_items"  # name of the captures that record the items of an array


@dataclass(frozen=True)
class Ref:
    """Reference to a rule."""

    name: str


@dataclass(frozen=True)
class Loop:
    """`low` to `high` times a sequence; None for no limit."""

    body: Sequence
    low: int
    high: int | None


class Rules:
    """Rules by name, and terminals by expression."""

    def __init__(self) -> None:
        self._rules: dict[str, list[Sequence]] = {}
        self._terminals: dict[str, str] = {}
        self._lines: list[str] = []
        self._aliases: dict[str, str] = {}  # rules of one expression, which stands in their place
        self._captured: set[str] = set()
        self._n = 0

    def new_name(self) -> str:
        """Return a rule name that is not in use."""
        self._n += 1
        return f"r{self._n}"

    def add(self, name: str, options: list[Sequence]) -> Ref:
        """Add a rule."""
        self._rules[name] = options
        return Ref(name)

    def capture(self, name: str) -> None:
        """Record the texts of a rule when they are complete."""
        self._captured.add(name)

    def add_line(self, line: str) -> None:
        """Add a line of Lark as it is."""
        self._lines.append(line)

    def terminal(self, expression: str) -> str:
        """Return the name of a terminal."""
        found = self._terminals.get(expression)
        if found is None:
            found = self._terminals[expression] = f"T{len(self._terminals)}"
        return found

    def productive(self) -> set[str]:
        """Return the rules that can produce a text."""
        users: dict[str, set[str]] = {}
        for name, options in self._rules.items():
            for used in _names(options):
                users.setdefault(used, set()).add(name)
        found: set[str] = set()
        waiting = list(self._rules)
        while waiting:
            name = waiting.pop()
            if name not in found and any(_can_end(option, found) for option in self._rules[name]):
                found.add(name)
                waiting += users.get(name, ())
        return found

    def write(self, start: str) -> str | None:
        """Return the grammar as Lark; None if no text matches."""
        productive = self.productive()
        if start not in productive:
            return None
        self._aliases = {
            name: options[0][0]
            for name, options in self._rules.items()
            if len(options) == 1
            and len(options[0]) == 1
            and isinstance(options[0][0], str)
            and name not in self._captured
        }
        if start in self._aliases:
            return "\n".join([f"start: {self._aliases[start]}", *self._lines, *self._written_terminals()])
        lines = [f"start: {start}"]
        used, waiting = {start}, [start]
        while waiting:
            name = waiting.pop()
            options = [kept for option in self._rules[name] if (kept := _prune(option, productive)) is not None]
            for other in _names(options):
                if other not in used and other not in self._aliases:
                    used.add(other)
                    waiting.append(other)
            head = f'{name}[capture="{CAPTURE}"]' if name in self._captured else name
            lines.append(f"{head}: " + " | ".join(dict.fromkeys(self._print(option) for option in options)))
        return "\n".join([*lines, *self._lines, *self._written_terminals()])

    def _written_terminals(self) -> list[str]:
        return [f"{name}: {expression}" for expression, name in self._terminals.items()]

    def _print(self, option: Sequence) -> str:
        return " ".join(map(self._print_symbol, option)) or '""'

    def _print_symbol(self, symbol: Symbol) -> str:
        if isinstance(symbol, str):
            return symbol
        if isinstance(symbol, Ref):
            return self._aliases.get(symbol.name, symbol.name)
        body = f"({self._print(symbol.body)})"
        if (symbol.low, symbol.high) == (1, 1):
            return body
        if symbol.high is None and symbol.low <= 1:
            return body + "*+"[symbol.low]
        if (symbol.low, symbol.high) == (0, 1):
            return body + "?"
        return f"{body}{{{symbol.low},{'' if symbol.high is None else symbol.high}}}"


def _names(options: list[Sequence]) -> set[str]:
    found: set[str] = set()
    waiting: list[Symbol] = [symbol for option in options for symbol in option]
    while waiting:
        symbol = waiting.pop()
        if isinstance(symbol, Ref):
            found.add(symbol.name)
        elif isinstance(symbol, Loop):
            waiting += symbol.body
    return found


def _can_end(option: Sequence, productive: set[str]) -> bool:
    for symbol in option:
        if isinstance(symbol, Ref) and symbol.name not in productive:
            return False
        if isinstance(symbol, Loop) and symbol.low and not _can_end(symbol.body, productive):
            return False
    return True


def _prune(option: Sequence, productive: set[str]) -> Sequence | None:
    """Return a sequence without loops that cannot produce a text; None if it cannot itself."""
    if not _can_end(option, productive):
        return None
    kept: list[Symbol] = []
    for symbol in option:
        if isinstance(symbol, Loop):
            body = _prune(symbol.body, productive)
            if body is not None and symbol.high != 0:
                kept.append(Loop(body, symbol.low, symbol.high))
        else:
            kept.append(symbol)
    return tuple(kept)
