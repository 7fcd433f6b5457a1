"""Parser of GBNF, llama.cpp's grammar format.

A grammar is a list of rules `name ::= alternatives`; the rule `root` describes the answer. An alternative concatenates
literals "abc", classes [a-z] or [^a-z], a dot for any character, rule names and groups ( ... ). Each item may be
followed by *, +, ?, {m}, {m,} or {m,n} for repetition. A rule ends at the end of the line, except inside a group or
after |. A comment begins with #.
"""

from __future__ import annotations

from woolly.errors import RequestError
from woolly.grammar.gbnf.nodes import (
    LAST_CHARACTER,
    Alternatives,
    Characters,
    Concat,
    Expression,
    Literal,
    Reference,
    Repeat,
    children,
    closure,
    references,
)

MAX_NESTING = 100
MAX_RULES = 1_000
MAX_REPEAT = 100_000
_SURROGATES = (0xD800, 0xDFFF)

_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(source: str) -> dict[str, Expression]:
    """Return the rules used by root, by name. RequestError gives line and column of invalid source."""
    parser = _Parser(source)
    rules = parser.rules()
    if "root" not in rules:
        raise RequestError("the GBNF grammar has no rule called root, which describes the answer")
    for name, at in parser.uses.items():
        if name not in rules:
            raise parser.error(f"rule {name!r} is not defined", at)
    needed, waiting = {"root"}, ["root"]
    while waiting:
        found = set(references(rules[waiting.pop()])) - needed
        needed |= found
        waiting += found
    kept = {name: rule for name, rule in rules.items() if name in needed}
    for name in sorted(kept.keys() - closure(kept, _can_end), key=parser.defined.__getitem__):
        problem = f"the rule {name!r} can never end, because each of its alternatives leads back to it"
        raise parser.error(problem, parser.defined[name])
    return kept


class _Parser:
    """Recursive descent over the source. `_at` is the next character, and each method consumes what it parses."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0
        self.uses: dict[str, int] = {}  # rule name to position of its first use
        self.defined: dict[str, int] = {}  # rule name to position of its definition

    def error(self, problem: str, at: int | None = None) -> RequestError:
        at = self._at if at is None else at
        line = self._source.count("\n", 0, at) + 1
        column = at - (self._source.rfind("\n", 0, at) + 1) + 1
        return RequestError(f"the GBNF grammar is wrong at line {line}, column {column}: {problem}")

    def rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        self._space(True)
        while self._at < len(self._source):
            at = self._at
            name = self._name("the name of a rule")
            if name in rules:
                raise self.error(f"rule {name!r} is defined twice", at)
            if len(rules) == MAX_RULES:
                raise self.error(f"the grammar has too many rules; the maximum is {MAX_RULES}", at)
            self.defined[name] = at
            self._space(False)
            if not self._take("::="):
                raise self.error(f"expected ::= after the name {name!r}{self._found()}")
            self._space(True)
            rules[name] = self._choice(False)
            if self._at < len(self._source) and self._peek() not in "\r\n":
                raise self.error(f"expected the end of the line{self._found()}")
            self._space(True)
        return rules

    def _choice(self, nested: bool) -> Expression:
        options = [self._sequence(nested)]
        while self._take("|"):
            self._space(True)
            options.append(self._sequence(nested))
        return options[0] if len(options) == 1 else Alternatives(tuple(dict.fromkeys(options)))

    def _sequence(self, nested: bool) -> Expression:
        items: list[Expression] = []
        while (item := self._item()) is not None:
            self._space(nested)
            while (counts := self._counts(nested)) is not None:
                item = Repeat(item, *counts)
                self._space(nested)
            items.append(item)
        if self._peek() and self._peek() in "*+?{":
            raise self.error(f"{self._peek()!r} has nothing before it to repeat")
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def _item(self) -> Expression | None:
        character, at = self._peek(), self._at
        if character == '"':
            return self._literal()
        if character == "[":
            return self._characters()
        if self._take("."):
            return Characters(_without_surrogates([(0, LAST_CHARACTER)]))
        if self._take("("):
            self._depth += 1
            if self._depth > MAX_NESTING:
                raise self.error(f"groups are nested deeper than {MAX_NESTING} levels", at)
            self._space(True)
            inner = self._choice(True)
            if not self._take(")"):
                raise self.error(f"expected ) for the group that begins at character {at + 1}{self._found()}")
            self._depth -= 1
            return inner
        if character and character in "<!":
            raise self.error(
                "tokens such as <[1000]> or <think> are not supported in GBNF; a Lark grammar can name them"
            )
        if _is_name(character):
            name = self._name("a name")
            self.uses.setdefault(name, at)
            return Reference(name)
        return None

    def _counts(self, nested: bool) -> tuple[int, int | None] | None:
        for mark, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return counts
        at = self._at
        if not self._take("{"):
            return None
        self._space(nested)
        low = self._number()
        high: int | None = low
        self._space(nested)
        if self._take(","):
            self._space(nested)
            high = self._number() if self._peek().isdecimal() else None
            self._space(nested)
        if not self._take("}"):
            raise self.error(f"expected }} after the number of repetitions{self._found()}")
        if high is not None and high < low:
            raise self.error(f"{{{low},{high}}} has a smaller upper than lower bound", at)
        return low, high

    def _literal(self) -> Literal:
        begin, text = self._at, []
        self._at += 1
        while not self._take('"'):
            if not self._peek():
                raise self.error('the literal has no closing "', begin)
            at = self._at
            code = self._character()
            if _SURROGATES[0] <= code <= _SURROGATES[1]:
                raise self.error(f"U+{code:04X} is half of a character; use complete characters", at)
            text.append(chr(code))
        return Literal("".join(text))

    def _characters(self) -> Characters:
        begin = self._at
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            if not self._peek():
                raise self.error("the character class has no closing ]", begin)
            at = self._at
            low = high = self._character()
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._at += 1
                high = self._character()
            if high < low:
                raise self.error(f"the range ends (U+{high:04X}) before it begins (U+{low:04X})", at)
            ranges.append((low, high))
        merged = _without_surrogates(_complement(_merge(ranges)) if negated else _merge(ranges))
        if not merged or (negated and not ranges):
            raise self.error("the character class has no characters" if not negated else "[^] excludes nothing", begin)
        return Characters(merged)

    def _character(self) -> int:
        if not self._take("\\"):
            self._at += 1
            return ord(self._source[self._at - 1])
        mark, at = self._peek(), self._at - 1
        self._at += 1
        if mark and mark in _ESCAPES:
            return ord(_ESCAPES[mark])
        if mark not in _HEX_DIGITS:
            raise self.error(
                f'\\{mark} is not an escape; expected one of \\t \\r \\n \\\\ \\" \\[ \\] \\xXX \\uXXXX \\UXXXXXXXX', at
            )
        digits = self._source[self._at : self._at + _HEX_DIGITS[mark]]
        self._at += len(digits)
        if len(digits) < _HEX_DIGITS[mark] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise self.error(f"\\{mark} needs {_HEX_DIGITS[mark]} hexadecimal digits", at)
        code = int(digits, 16)
        if code > LAST_CHARACTER:
            raise self.error(f"U+{code:X} is beyond the last character, U+{LAST_CHARACTER:X}", at)
        return code

    def _number(self) -> int:
        at = self._at
        while self._peek() in set("0123456789"):
            self._at += 1
        digits = self._source[at : self._at]
        if not digits:
            raise self.error(f"expected a number of repetitions{self._found()}")
        if len(digits) > 9 or int(digits) > MAX_REPEAT:
            raise self.error(f"{digits[:12]} repetitions are too many; the maximum is {MAX_REPEAT}", at)
        return int(digits)

    def _name(self, wanted: str) -> str:
        at = self._at
        while _is_name(self._peek()):
            self._at += 1
        if at == self._at:
            raise self.error(f"expected {wanted}{self._found()}")
        return self._source[at : self._at]

    def _space(self, newlines: bool) -> None:
        while character := self._peek():
            if character == "#":
                end = self._source.find("\n", self._at)
                self._at = len(self._source) if end < 0 else end
            elif character in " \t" or (newlines and character in "\r\n"):
                self._at += 1
            else:
                return

    def _peek(self, ahead: int = 0) -> str:
        return self._source[self._at + ahead : self._at + ahead + 1]

    def _take(self, text: str) -> bool:
        taken = self._source.startswith(text, self._at)
        self._at += len(text) if taken else 0
        return taken

    def _found(self) -> str:
        return f" but found {self._peek()!r}" if self._peek() else " but the grammar ends"


def _is_name(character: str) -> bool:
    return character.isascii() and (character.isalnum() or (character != "" and character in "-_"))


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    rest, begin = [], 0
    for low, high in ranges:
        if low > begin:
            rest.append((begin, low - 1))
        begin = high + 1
    return [*rest, (begin, LAST_CHARACTER)] if begin <= LAST_CHARACTER else rest


def _without_surrogates(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges without surrogates, which cannot occur in UTF-8."""
    first, last = _SURROGATES
    cut = [part for low, high in ranges for part in ((low, min(high, first - 1)), (max(low, last + 1), high))]
    return tuple(dict.fromkeys((low, high) for low, high in cut if low <= high))


def _can_end(item: Expression, known: set[str]) -> bool:
    """Return True if an item matches a finite string, provided that each rule in `known` does."""
    if isinstance(item, Reference):
        return item.name in known
    if isinstance(item, Repeat) and item.low == 0:
        return True
    ends = (_can_end(child, known) for child in children(item))
    return any(ends) if isinstance(item, Alternatives) else all(ends)
