"""Translate GBNF to llguidance's dialect of Lark."""

from __future__ import annotations

import json

from woolly.errors import RequestError
from woolly.grammar.gbnf.lexemes import find_lexemes
from woolly.grammar.gbnf.nodes import Alternatives, Characters, Concat, Expression, Lexeme, Literal, Reference
from woolly.grammar.gbnf.parser import parse_gbnf
from woolly.grammar.gbnf.rules import simplify, unroll_recursion

MAX_NESTING = 8  # groups per line of Lark; llguidance accepts 30


def gbnf_to_lark(source: str) -> str:
    """Return an equivalent Lark grammar. RequestError gives line and column of invalid source."""
    try:
        return _Writer(simplify(unroll_recursion(parse_gbnf(source)))).text()
    except RecursionError:
        raise RequestError("the GBNF grammar is too deep: its rules form a chain of hundreds") from None


class _Writer:
    """Writes the lines of a Lark grammar. Names in capitals are lexemes or parts of lexemes; other names are rules."""

    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._shapes = find_lexemes(rules)
        self._names: dict[tuple[Expression, bool], str] = {}
        self._waiting: list[tuple[str, Expression, bool]] = []
        self._lines: list[str] = []

    def text(self) -> str:
        self._waiting.append(("start", self._shapes["root"], False))
        while self._waiting:
            name, body, is_lexeme = self._waiting.pop()
            self._lines.append(f"{name}: {self._write(body, is_lexeme, 0)}")
        return "\n".join(self._lines) + "\n"

    def _named(self, body: Expression, is_lexeme: bool) -> str:
        """Return the name of the line for `body`, which `text` writes later."""
        if (body, is_lexeme) not in self._names:
            name = f"{'L' if is_lexeme else 'r'}{len(self._names)}"
            self._names[body, is_lexeme] = name
            self._waiting.append((name, body, is_lexeme))
        return self._names[body, is_lexeme]

    def _write(self, item: Expression, is_lexeme: bool, depth: int) -> str:
        if isinstance(item, Literal):
            return json.dumps(item.text)
        if isinstance(item, Characters):
            return _write_characters(item)
        if isinstance(item, Lexeme):
            simple = isinstance(item.expression, (Literal, Characters)) or item.expression == Concat(())
            return self._write(item.expression, True, depth) if simple else self._named(item.expression, True)
        if isinstance(item, Reference):
            return self._named((self._rules if is_lexeme else self._shapes)[item.name], is_lexeme)
        if depth == MAX_NESTING:
            return self._named(item, is_lexeme)
        if isinstance(item, Concat):
            return " ".join(self._grouped(part, is_lexeme, depth) for part in item.items) or '""'
        if isinstance(item, Alternatives):
            return " | ".join(self._grouped(option, is_lexeme, depth) for option in item.options)
        if item.high == 0:
            return '""'
        body = self._grouped(item.item, is_lexeme, depth)
        counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        high = "" if item.high is None else item.high
        return body + counts.get((item.low, item.high), f"{{{item.low},{high}}}")

    def _grouped(self, item: Expression, is_lexeme: bool, depth: int) -> str:
        simple = isinstance(item, (Literal, Characters, Lexeme, Reference)) or item == Concat(())
        text = self._write(item, is_lexeme, depth if simple else depth + 1)
        return text if simple or depth + 1 == MAX_NESTING else f"({text})"


def _write_characters(characters: Characters) -> str:
    ranges = (
        f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in characters.ranges
    )
    return f"/[{''.join(ranges)}]/"
