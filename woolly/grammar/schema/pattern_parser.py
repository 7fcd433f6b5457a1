"""Parser of regular expressions (ECMA-262)."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from string import hexdigits

from woolly.grammar.schema.language import LAST, Chars, Ranges, invert, merge

MAX_DEPTH = 100
MAX_COUNT = 100_000
_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_DOT: Ranges = invert(((10, 10), (13, 13), (0x2028, 0x2029)))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_CATEGORIES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd",
    "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z",
    "Space_Separator": "Zs", "Control": "Cc", "cntrl": "Cc", "Other": "C", "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
    "Connector_Punctuation": "Pc", "Other_Punctuation": "Po",
}  # fmt: skip


@dataclass(frozen=True)
class PatternSequence:
    """Nodes in order."""

    items: tuple[PatternNode, ...]


@dataclass(frozen=True)
class PatternChoice:
    """Any of some nodes."""

    items: tuple[PatternNode, ...]


@dataclass(frozen=True)
class Repeated:
    """Repetition of a node."""

    item: PatternNode
    low: int
    high: int | None


@dataclass(frozen=True)
class Anchor:
    """Start or end of the text."""

    kind: str  # ^ or $


@dataclass(frozen=True)
class Ahead:
    """Look-ahead."""

    item: PatternNode
    is_negative: bool


PatternNode = Chars | PatternSequence | PatternChoice | Repeated | Anchor | Ahead


class PatternError(Exception):
    """Pattern that is invalid or not supported."""


class Parser:
    """Recursive-descent parser of one pattern."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0
        self._ignores_case = False

    def parse(self) -> PatternNode:
        """Return the pattern."""
        if self._source.startswith("(?i)"):
            self._at, self._ignores_case = 4, True
        node = self._choice()
        if self._at < len(self._source):
            raise PatternError(f"{self._source[self._at]!r} at {self._at} has no meaning")
        return node

    def _peek(self, text: str) -> bool:
        if self._source.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _choice(self) -> PatternNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError("it is nested too deeply")
        options = [self._sequence()]
        while self._peek("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else PatternChoice(tuple(options))

    def _sequence(self) -> PatternNode:
        items: list[PatternNode] = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            items.append(self._quantified(self._atom()))
        return items[0] if len(items) == 1 else PatternSequence(tuple(items))

    def _quantified(self, item: PatternNode) -> PatternNode:
        while self._at < len(self._source):
            char = self._source[self._at]
            if char in "*+?":
                self._at += 1
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            elif char == "{" and (found := self._counts()) is not None:
                low, high = found
            else:
                break
            if self._peek("+"):
                raise PatternError("possessive repetitions are not supported")
            self._peek("?")  # a lazy repetition has the same matches
            item = Repeated(item, low, high)
        return item

    def _counts(self) -> tuple[int, int | None] | None:
        end = self._source.find("}", self._at)
        low, comma, high = self._source[self._at + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            return None
        self._at = end + 1
        numbers = int(low), int(high) if high else None if comma else int(low)
        if max(numbers[0], numbers[1] or 0) > MAX_COUNT or (numbers[1] is not None and numbers[1] < numbers[0]):
            raise PatternError(f"{{{low}{comma}{high}}} is no usable count")
        return numbers

    def _atom(self) -> PatternNode:
        char = self._source[self._at]
        if char in "^$":
            self._at += 1
            return Anchor(char)
        if char == "(":
            return self._group()
        if char == "[":
            self._at += 1
            return self._cased(self._bracket())
        if char == ".":
            self._at += 1
            return Chars(_DOT)
        if char == "\\":
            if self._source[self._at + 1 : self._at + 2] in ("b", "B"):
                raise PatternError(r"word boundaries (\b) are not supported")
            for text, kind in ((r"\A", "^"), (r"\Z", "$"), (r"\z", "$")):
                if self._peek(text):
                    return Anchor(kind)
            return self._cased(self._escape())
        if char in "*+?":
            raise PatternError(f"{char!r} at {self._at} repeats nothing")
        self._at += 1
        return self._cased(((ord(char), ord(char)),))

    def _group(self) -> PatternNode:
        self._at += 1
        ahead = None
        if self._peek("?"):
            if self._peek("="):
                ahead = False
            elif self._peek("!"):
                ahead = True
            elif self._source.startswith(("<=", "<!"), self._at):
                raise PatternError("look-around behind a position is not supported")
            elif self._peek("<") or self._peek("P<"):
                end = self._source.find(">", self._at)
                if end < 0:
                    raise PatternError("a group has no end")
                self._at = end + 1
            elif not self._peek(":"):
                raise PatternError("groups with flags are not supported")
        node = self._choice()
        if not self._peek(")"):
            raise PatternError("a parenthesis is not closed")
        return node if ahead is None else Ahead(node, ahead)

    def _bracket(self) -> Ranges:
        negative, ranges = self._peek("^"), []
        while not self._peek("]"):
            if self._at >= len(self._source):
                raise PatternError("a bracket is not closed")
            first = self._member()
            if (
                _is_single(first)
                and self._source.startswith("-", self._at)
                and not self._source.startswith("-]", self._at)
            ):
                self._at += 1
                if self._at >= len(self._source):
                    raise PatternError("a bracket is not closed")
                last = self._member()
                if not _is_single(last):
                    ranges += [*first, (45, 45), *last]
                    continue
                if last[0][0] < first[0][0]:
                    raise PatternError("a range of characters is reversed")
                first = ((first[0][0], last[0][0]),)
            ranges += first
        return invert(self._cased(merge(ranges)).ranges) if negative else merge(ranges)

    def _member(self) -> Ranges:
        if self._source[self._at] == "\\":
            if self._source[self._at + 1 : self._at + 2] == "b":
                self._at += 2
                return ((8, 8),)
            return self._escape()
        self._at += 1
        return ((ord(self._source[self._at - 1]), ord(self._source[self._at - 1])),)

    def _escape(self) -> Ranges:
        char = self._source[self._at + 1 : self._at + 2]
        self._at += 2
        if char.lower() in _CLASSES:
            return _CLASSES[char] if char in _CLASSES else invert(_CLASSES[char.lower()])
        if char in ("p", "P"):
            ranges = self._property()
            return ranges if char == "p" else invert(ranges)
        if char == "c" and self._source[self._at : self._at + 1].isalpha():
            self._at += 1
            return ((ord(self._source[self._at - 1]) % 32,) * 2,)
        code = self._code(char)
        return ((code, code),)

    def _code(self, char: str) -> int:
        if char in ("x", "u"):
            if self._peek("{"):
                digits, _, _ = self._source[self._at :].partition("}")
                code = self._hexadecimal(char, len(digits))
                self._at += 1
            else:
                code = self._hexadecimal(char, 2 if char == "x" else 4)
            if 0xD800 <= code < 0xDC00 and self._peek("\\u"):
                low = self._hexadecimal("u", 4)
                if not 0xDC00 <= low < 0xE000:
                    raise PatternError(f"\\u{code:x} needs a low surrogate after it")
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            if code > LAST:
                raise PatternError(f"\\{char}{{{code:x}}} is no character")
            return code
        if char in _ESCAPES and not (char == "0" and self._source[self._at : self._at + 1].isdecimal()):
            return _ESCAPES[char]
        if char.isdecimal() or char == "k":
            raise PatternError("references to groups are not supported")
        if char == "" or char.isalpha():
            raise PatternError(f"the escape \\{char} is not supported")
        return ord(char)

    def _hexadecimal(self, char: str, n: int) -> int:
        digits = self._source[self._at : self._at + n]
        if not digits or not set(digits) <= set(hexdigits):
            raise PatternError(f"\\{char} needs hexadecimal digits")
        self._at += n
        return int(digits, 16)

    def _property(self) -> Ranges:
        if not self._peek("{"):
            name, self._at = self._source[self._at : self._at + 1], self._at + 1
        else:
            name, _, _ = self._source[self._at :].partition("}")
            self._at += len(name) + 1
        kind, _, value = name.partition("=")
        if value and kind in ("General_Category", "gc"):
            name = value
        if name == "ASCII":
            return ((0, 127),)
        if name == "Any":
            return ((0, LAST),)
        category = _CATEGORIES.get(name, name)
        if category[:1] not in "LMNPSZC" or len(category) > 2 or not category:
            raise PatternError(f"\\p{{{name[:30]}}} is not supported; only general categories are")
        ranges = _category(category)
        if not ranges:
            raise PatternError(f"\\p{{{name[:30]}}} is not supported; only general categories are")
        return ranges

    def _cased(self, ranges: Ranges) -> Chars:
        if not self._ignores_case:
            return Chars(ranges)
        more = list(ranges)
        for begin, other in ((65, 97), (97, 65)):
            for low, high in ranges:
                low, high = max(low, begin), min(high, begin + 25)
                if low <= high:
                    more.append((low - begin + other, high - begin + other))
        return Chars(merge(more))


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


@lru_cache(40)
def _category(name: str) -> Ranges:
    """Return the code points of a general category. Takes 0.2 s."""
    found: list[tuple[int, int]] = []
    for code in range(LAST + 1):
        if unicodedata.category(chr(code)).startswith(name):
            if found and found[-1][1] == code - 1:
                found[-1] = (found[-1][0], code)
            else:
                found.append((code, code))
    return tuple(found)
