"""Lexemes: parts of a GBNF grammar that the lexer may match as a unit.

llguidance splits text into lexemes with greedy matches and without backtracking. GBNF has no lexemes. In `number ws
"\\n"`, if `ws` also matches newlines, a greedy lexeme for `ws` leaves no newline for the literal, and the rule cannot
end. Lexemes are much faster than single characters. Every regular expression starts as one lexeme, and lexemes that
could consume the text after them are split until none remain, down to single characters if necessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from woolly.errors import RequestError
from woolly.grammar.gbnf.nodes import (
    LAST_CHARACTER,
    Alternatives,
    Characters,
    Concat,
    Expression,
    Lexeme,
    Literal,
    Reference,
    Repeat,
    references,
    walk,
)
from woolly.grammar.gbnf.rules import regular_rules

MAX_POSITIONS = 20_000  # positions in the automata of all lexemes
MAX_PAIRS = 2_000_000  # pairs of positions to compare, about 2 s


def find_lexemes(rules: dict[str, Expression]) -> dict[str, Expression]:
    """Return the rules reachable from root (including root), with parts replaced by lexemes."""
    return _Lexer(rules).run()


@dataclass
class _Automaton:
    """Glushkov automaton with a position per character of an expression. Sets of positions and atoms are bit masks."""

    atoms: list[int] = field(default_factory=list)  # per position: matched characters
    follow: list[int] = field(default_factory=list)  # per position: positions that may follow
    first: int = 0
    last: int = 0
    nullable: bool = False


class _Lexer:
    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._regular = regular_rules(rules)
        self._apart: set[Expression] = set()  # regular, but not matched as a unit
        self._automata: dict[Expression, _Automaton] = {}
        self._clashes: dict[tuple[Expression, Expression], int] = {}
        self._n_positions = self._n_pairs = 0
        self._bounds = self._find_bounds()

    def run(self) -> dict[str, Expression]:
        while True:
            shapes = self._shapes()
            lexemes = _Following(self, shapes).lexemes
            clashing = {
                longer
                for lexeme, following in lexemes.items()
                for longer in lexemes
                if self._clash(lexeme, longer) & following
            }
            if not clashing:
                return shapes
            self._apart |= clashing

    def _shapes(self) -> dict[str, Expression]:
        shapes: dict[str, Expression] = {}
        waiting = ["root"]
        while waiting:
            name = waiting.pop()
            if name not in shapes:
                shapes[name] = self._shape(self._rules[name])
                waiting += references(shapes[name])
        return shapes

    def _is_lexeme(self, item: Expression) -> bool:
        return item not in self._apart and all(name in self._regular for name in references(item))

    def _shape(self, item: Expression) -> Expression:
        if self._is_lexeme(item):
            return Lexeme(item)
        if isinstance(item, Literal):
            return Concat(tuple(Lexeme(Literal(character)) for character in item.text))
        if isinstance(item, Repeat):
            return Repeat(self._shape(item.item), item.low, item.high)
        if isinstance(item, Alternatives):
            whole = tuple(option for option in item.options if self._is_lexeme(option))
            if len(whole) > 1 and whole != item.options and (merged := Alternatives(whole)) not in self._apart:
                rest = (option for option in item.options if option not in whole)
                return Alternatives((Lexeme(merged), *map(self._shape, rest)))
            return Alternatives(tuple(map(self._shape, item.options)))
        if isinstance(item, Concat):
            return self._sequence_shape(item)
        return item

    def _sequence_shape(self, sequence: Concat) -> Expression:
        """Join adjacent lexemes into one."""
        out: list[Expression] = []
        run: list[Expression] = []
        for item in (*sequence.items, None):
            if item is not None and self._is_lexeme(item):
                run.append(item)
                continue
            merged = run[0] if len(run) == 1 else Concat(tuple(run))
            if run and merged not in self._apart:
                out.append(Lexeme(merged))
            else:
                out += map(self._shape, run)
            run = []
            if item is not None:
                out.append(self._shape(item))
        return Concat(tuple(out))

    def _clash(self, lexeme: Expression, longer: Expression) -> int:
        """Return the characters with which `longer` may continue where `lexeme` may be complete."""
        key = (lexeme, longer)
        if key not in self._clashes:
            self._clashes[key] = self._compare(self.automaton(lexeme), self.automaton(longer))
        return self._clashes[key]

    def _compare(self, one: _Automaton, other: _Automaton) -> int:
        """Walk both automata along all common prefixes."""
        clash = 0
        waiting = [(p, q) for p in _bits(one.first) for q in _bits(other.first) if one.atoms[p] & other.atoms[q]]
        seen = set(waiting)
        while waiting:
            p, q = waiting.pop()
            if one.last >> p & 1:
                for r in _bits(other.follow[q]):
                    clash |= other.atoms[r]
            for p2 in _bits(one.follow[p]):
                for q2 in _bits(other.follow[q]):
                    self._n_pairs += 1
                    if one.atoms[p2] & other.atoms[q2] and (p2, q2) not in seen:
                        seen.add((p2, q2))
                        waiting.append((p2, q2))
            if self._n_pairs > MAX_PAIRS:
                raise RequestError("the GBNF grammar is too large: comparing its rules takes too long")
        return clash

    def automaton(self, expression: Expression) -> _Automaton:
        """Return the automaton of a regular expression."""
        if expression not in self._automata:
            automaton = _Automaton()
            automaton.first, automaton.last, automaton.nullable = self._add(automaton, expression)
            self._automata[expression] = automaton
        return self._automata[expression]

    def _add(self, automaton: _Automaton, item: Expression) -> tuple[int, int, bool]:
        """Add the positions of an item. Return the first and last positions, and True if the item may be empty."""
        if isinstance(item, Reference):
            return self._add(automaton, self._rules[item.name])
        if isinstance(item, Characters):
            return self._position(automaton, item.ranges)
        if isinstance(item, Alternatives):
            parts = [self._add(automaton, option) for option in item.options]
            return _union(p[0] for p in parts), _union(p[1] for p in parts), any(p[2] for p in parts)
        if isinstance(item, Repeat):
            if item.high == 0:
                return 0, 0, True
            first, last, nullable = self._add(automaton, item.item)
            if item.high != 1:  # treats a counted repetition as unbounded, which finds at least as many clashes
                for p in _bits(last):
                    automaton.follow[p] |= first
            return first, last, nullable or item.low == 0
        if isinstance(item, Literal):
            parts = [self._position(automaton, ((ord(c), ord(c)),)) for c in item.text]
        else:
            parts = [self._add(automaton, part) for part in item.items] if isinstance(item, Concat) else []
        first, last, nullable = 0, 0, True
        for part_first, part_last, part_nullable in parts:
            for p in _bits(last):
                automaton.follow[p] |= part_first
            first |= part_first if nullable else 0
            last = part_last | (last if part_nullable else 0)
            nullable = nullable and part_nullable
        return first, last, nullable

    def _position(self, automaton: _Automaton, ranges: tuple[tuple[int, int], ...]) -> tuple[int, int, bool]:
        self._n_positions += 1
        if self._n_positions > MAX_POSITIONS:
            raise RequestError("the GBNF grammar is too large: its rules expand to too many characters")
        atoms = 0
        for low, high in ranges:
            atoms |= (1 << self._bounds[high + 1]) - (1 << self._bounds[low])
        automaton.atoms.append(atoms)
        automaton.follow.append(0)
        bit = 1 << (len(automaton.atoms) - 1)
        return bit, bit, False

    def _find_bounds(self) -> dict[int, int]:
        """Split the characters into atoms: ranges that no class of the grammar divides. Return bound to number."""
        bounds = {0, LAST_CHARACTER + 1}
        for item in (node for rule in self._rules.values() for node in walk(rule)):
            if isinstance(item, Literal):
                bounds |= {edge for character in item.text for edge in (ord(character), ord(character) + 1)}
            elif isinstance(item, Characters):
                bounds |= {edge for low, high in item.ranges for edge in (low, high + 1)}
        return {bound: number for number, bound in enumerate(sorted(bounds))}


class _Following:
    """Characters that may follow each lexeme, computed as two fixed points."""

    def __init__(self, lexer: _Lexer, shapes: dict[str, Expression]) -> None:
        self._lexer = lexer
        self._first: dict[str, tuple[int, bool]] = dict.fromkeys(shapes, (0, False))
        self._after: dict[str, int] = dict.fromkeys(shapes, 0)
        self.lexemes: dict[Expression, int] = {}
        while True:
            found = {name: self._begin(shape) for name, shape in shapes.items()}
            if found == self._first:
                break
            self._first = found
        while True:
            before = (dict(self._after), dict(self.lexemes))
            for name, shape in shapes.items():
                self._visit(shape, self._after[name])
            if before == (self._after, self.lexemes):
                break

    def _begin(self, shape: Expression) -> tuple[int, bool]:
        """Return the characters with which a shape may begin, and True if it may be empty."""
        if isinstance(shape, Lexeme):
            automaton = self._lexer.automaton(shape.expression)
            return _union(automaton.atoms[p] for p in _bits(automaton.first)), automaton.nullable
        if isinstance(shape, Reference):
            return self._first[shape.name]
        if isinstance(shape, Alternatives):
            parts = [self._begin(option) for option in shape.options]
            return _union(part[0] for part in parts), any(part[1] for part in parts)
        if isinstance(shape, Repeat):
            first, nullable = self._begin(shape.item)
            return first, nullable or shape.low == 0
        first, nullable = 0, True
        for item in shape.items if isinstance(shape, Concat) else ():
            if not nullable:
                break
            part, nullable = self._begin(item)
            first |= part
        return first, nullable

    def _visit(self, shape: Expression, after: int) -> None:
        if isinstance(shape, Lexeme):
            self.lexemes[shape.expression] = self.lexemes.get(shape.expression, 0) | after
        elif isinstance(shape, Reference):
            self._after[shape.name] |= after
        elif isinstance(shape, Alternatives):
            for option in shape.options:
                self._visit(option, after)
        elif isinstance(shape, Repeat):
            self._visit(shape.item, after | (self._begin(shape.item)[0] if shape.high != 1 else 0))
        elif isinstance(shape, Concat):
            for item in reversed(shape.items):
                self._visit(item, after)
                first, nullable = self._begin(item)
                after = first | (after if nullable else 0)


def _union(masks: Iterable[int]) -> int:
    out = 0
    for mask in masks:
        out |= mask
    return out


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
