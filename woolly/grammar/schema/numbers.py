"""Sets of JSON numbers, and their expressions of Lark."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from woolly.errors import RequestError

MAX_MULTIPLE = 10_000  # states of an automaton: 10,007 compile in 60 ms, 99,991 in 1 s
MAX_DIGITS = 400
_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_FRACTION = rf"{_INTEGER}\.[0-9]*[1-9][0-9]*"
_REST = r"(?:\.[0-9]+)?"


def exact(value: object) -> Decimal | None:
    """Return a JSON number exactly; None for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    if not number.is_finite() or abs(number.adjusted()) > MAX_DIGITS:
        raise RequestError(f"the JSON schema has the number {str(value)[:40]}, which has too many digits")
    return number


@dataclass(frozen=True)
class Numbers:
    """Numbers between two bounds, of one kind, and of all multiples."""

    kind: str = "any"  # any, integer, fraction (no whole number)
    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False
    multiples: tuple[Fraction, ...] = ()
    excluded: frozenset[Decimal] = frozenset()
    values: frozenset[Decimal] | None = None  # all that are possible

    def contains(self, number: Decimal) -> bool:
        """Return True if a number meets all conditions but `values`."""
        whole = number == number.to_integral_value()
        return (
            (self.kind == "any" or (self.kind == "integer") == whole)
            and (self.low is None or (number > self.low if self.low_open else number >= self.low))
            and (self.high is None or (number < self.high if self.high_open else number <= self.high))
            and all((Fraction(number) / multiple).denominator == 1 for multiple in self.multiples)
            and number not in self.excluded
        )

    def normal(self) -> Numbers | None:
        """Return the same numbers in a simpler form; None if there are none."""
        numbers = self
        if self.kind == "integer":
            numbers = _whole_bounds(numbers)
        if numbers.values is not None:
            kept = frozenset(value for value in numbers.values if numbers.contains(value))
            return Numbers(values=kept) if kept else None
        low, high = numbers.low, numbers.high
        if low is not None and high is not None:
            if low > high or (low == high and (numbers.low_open or numbers.high_open)):
                return None
            if low == high:
                return Numbers(values=frozenset([low])) if numbers.contains(low) else None
        if numbers.kind == "integer" and low is not None and high is not None and high - low < 50:
            kept = frozenset(value for value in map(Decimal, range(int(low), int(high) + 1)) if numbers.contains(value))
            is_listed = len(kept) < 3 or (numbers.multiples and numbers.excluded)
            return None if not kept else Numbers(values=kept) if is_listed else numbers
        return numbers

    def expression(self) -> str:
        """Return an expression of Lark, or a `%json` leaf, which is no terminal."""
        if self.values is not None:
            return "/" + "|".join(re_literal(spell(value)) for value in sorted(self.values)) + "/"
        if self.multiples:
            return self._leaf()
        parts = []
        if self.low is None and self.high is None and not self.excluded:
            return "/" + {"any": _NUMBER, "integer": _INTEGER, "fraction": _FRACTION}[self.kind] + "/"
        if self.kind == "integer":
            low, high = (None if bound is None else int(bound) for bound in (self.low, self.high))
            parts.append(f"/{_integers(low, high)}/")
        elif self.kind == "fraction":
            parts.append(f"/{_FRACTION}/")
        if self.kind != "integer":
            parts.append(f"/{_decimals(self)}/")
        parts += [f"~/{_spellings(number)}/" for number in sorted(self.excluded)]
        return " & ".join(parts)

    def _leaf(self) -> str:
        bare = replace(self, excluded=frozenset())
        if self.kind == "fraction" or any(bare.contains(number) for number in self.excluded):
            raise RequestError(
                "the JSON schema combines multipleOf with 'not' for one number, which grammars cannot enforce; remove"
                " one of them"
            )
        multiple = Fraction(0)
        for other in self.multiples:
            multiple = (
                Fraction(
                    math.lcm(multiple.numerator, other.numerator), math.gcd(multiple.denominator, other.denominator)
                )
                if multiple
                else other
            )
        if (states := _states(multiple)) > MAX_MULTIPLE:
            raise RequestError(
                f"the JSON schema requires multiples of {str(states)[:40]}, if all multipleOf are combined and their"
                f" zeros removed; the maximum is {MAX_MULTIPLE}"
            )
        leaf = {"type": "integer" if self.kind == "integer" else "number", "multipleOf": float(multiple)}
        for keyword, bound, is_open in (("inimum", self.low, self.low_open), ("aximum", self.high, self.high_open)):
            if bound is None:
                continue
            if Decimal(float(bound)) != bound and Decimal(repr(float(bound))) != bound:
                raise RequestError(
                    f"the JSON schema has the bound {bound} beside multipleOf, which is not exact as a 64-bit float;"
                    " use a number that is"
                )
            name = f"exclusiveM{keyword}" if is_open else f"m{keyword}"
            leaf[name] = int(bound) if self.kind == "integer" else float(bound)
        if leaf["type"] == "integer" and multiple.denominator == 1:
            leaf["multipleOf"] = int(multiple)
        return f"%json {json.dumps(leaf)}"


def spell(number: Decimal) -> str:
    """Return the spelling of a number, without an exponent if it is short."""
    if number == number.to_integral_value():
        return str(int(number))
    text = format(number, "f")
    return text.rstrip("0") if "." in text else text


def re_literal(text: str) -> str:
    """Return a regex for the text of a number."""
    return text.replace(".", r"\.")


def _spellings(number: Decimal) -> str:
    sign, _, digits = spell(number).rpartition("-")
    del sign
    whole, _, rest = digits.partition(".")
    minus = "-?" if number == 0 else "-" if number < 0 else ""
    return f"{minus}{whole}" + (rf"\.{rest}0*" if rest else r"(?:\.0+)?")


def _whole_bounds(numbers: Numbers) -> Numbers:
    # Sums are of int: those of Decimal are rounded to 28 digits.
    low, high = numbers.low, numbers.high
    if low is not None:
        whole = math.ceil(low)
        low = Decimal(whole + 1 if numbers.low_open and whole == low else whole)
    if high is not None:
        whole = math.floor(high)
        high = Decimal(whole - 1 if numbers.high_open and whole == high else whole)
    return replace(numbers, low=low, high=high, low_open=False, high_open=False)


def _integers(low: int | None, high: int | None) -> str:
    """Return a regex for the integers between two bounds."""
    options = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        most = None if low is None else -low
        options.append("-" + _positive(least, most))
    if high is None or high >= 0:
        begin = max(low or 0, 0)
        if begin == 0:
            options.append("0")
            begin = 1
        if high is None or high >= begin:
            options.append(_positive(begin, high))
    return "(?:" + "|".join(options) + ")"


def _positive(low: int, high: int | None) -> str:
    """Return a regex for integers from 1 on, without leading zeros."""
    if high is None:
        n = len(str(low))
        return f"(?:{_positive(low, 10**n - 1)}|[1-9][0-9]{{{n},}})"
    options = []
    while len(str(low)) < len(str(high)):
        options.append(_same_length(str(low), "9" * len(str(low))))
        low = 10 ** len(str(low))
    options.append(_same_length(str(low), str(high)))
    return "(?:" + "|".join(options) + ")"


def _same_length(low: str, high: str) -> str:
    """Return a regex for digits between two texts of one length."""
    if low == high:
        return low
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    n = len(low) - 1
    rest = _digits(n)
    if low[1:] == "0" * n and high[1:] == "9" * n:
        return f"[{low[0]}-{high[0]}]{rest}"
    options = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * n:
        options.append(low[0] + _same_length(low[1:], "9" * n))
        first += 1
    tail = ""
    if high[1:] != "9" * n:
        tail = high[0] + _same_length("0" * n, high[1:])
        last -= 1
    if first <= last:
        options.append(f"[{first}-{last}]{rest}")
    return "(?:" + "|".join([*options, tail] if tail else options) + ")"


def _digits(n: int) -> str:
    return "" if n == 0 else f"[0-9]{{{n}}}"


def _decimals(numbers: Numbers) -> str:
    """Return a regex for the decimal numbers between two bounds, without exponents."""
    low, high = numbers.low, numbers.high
    options = []
    if low is None or low < 0:
        least, least_open = (
            (Decimal(0), False) if high is None or high >= 0 else (high.copy_negate(), numbers.high_open)
        )
        most, most_open = (None, False) if low is None else (low.copy_negate(), numbers.low_open)
        if high is not None and high == 0 and numbers.high_open:
            least_open = True
        options.append("-" + _magnitude(least, least_open, most, most_open))
    elif low == 0 and not numbers.low_open:
        options.append(r"-0(?:\.0+)?")
    if high is None or high >= 0:
        least, least_open = (low, numbers.low_open) if low is not None and low >= 0 else (Decimal(0), False)
        if not (high == 0 and numbers.high_open):
            options.append(_magnitude(least, least_open, high, numbers.high_open))
    return "(?:" + "|".join(options) + ")"


def _magnitude(low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> str:
    """Return a regex for decimal numbers from 0 on."""
    low_whole, low_rest = _split(low)
    options: list[str | None] = []
    if high is None:
        options.append(_at_integer(low_whole, _above(low_rest, low_open)))
        options.append(_positive(low_whole + 1, None) + _REST)
        return "(?:" + "|".join(option for option in options if option) + ")"
    high_whole, high_rest = _split(high)
    if low_whole == high_whole:
        n = max(len(low_rest), len(high_rest))
        return _at_integer(low_whole, _between(low_rest.ljust(n, "0"), low_open, high_rest.ljust(n, "0"), high_open))
    options.append(_at_integer(low_whole, _above(low_rest, low_open)))
    if low_whole + 1 <= high_whole - 1:
        options.append(_positive(low_whole + 1, high_whole - 1) + _REST)
    below = _below(high_rest, high_open)
    options.append(_at_integer(high_whole, below) if below is not None else None)
    return "(?:" + "|".join(option for option in options if option) + ")"


def _at_integer(whole: int, rest: str) -> str:
    return f"{whole}{rest}"


def _split(number: Decimal) -> tuple[int, str]:
    whole, _, rest = format(number, "f").partition(".")
    return int(whole), rest.rstrip("0")


def _above(digits: str, is_open: bool) -> str:
    """Return a regex for the rest after the whole number that is at least `.digits`."""
    if digits == "":
        return r"\.[0-9]*[1-9][0-9]*" if is_open else _REST
    options = [f"{digits[:i]}[{int(digits[i]) + 1}-9][0-9]*" for i in range(len(digits)) if digits[i] != "9"]
    options.append(digits + ("[0-9]*[1-9][0-9]*" if is_open else "[0-9]*"))
    return r"\.(?:" + "|".join(options) + ")"


def _below(digits: str, is_open: bool) -> str | None:
    """Return a regex for the rest after the whole number that is at most `.digits`; None if there is none."""
    if digits == "":
        return None if is_open else r"(?:\.0+)?"
    options = []
    for i in range(len(digits)):
        if digits[i] != "0":
            options.append(f"{digits[:i]}[0-{int(digits[i]) - 1}][0-9]*")
        if i > 0 and digits[i:].strip("0"):
            options.append(digits[:i])  # shorter, so smaller
    if not is_open:
        options.append(digits + "0*")
    return r"(?:\.(?:" + "|".join(options) + "))?"


def _between(low: str, low_open: bool, high: str, high_open: bool) -> str:
    """Return a regex for the rest of a number between two rests of one length."""
    n = len(low)
    if n == 0 or low == high:
        return rf"\.{low}0*" if n else r"(?:\.0+)?"
    options = []
    common = 0
    while low[common] == high[common]:
        common += 1
    head = low[:common]
    first, last = int(low[common]), int(high[common])
    if first + 1 <= last - 1:
        options.append(f"{head}[{first + 1}-{last - 1}][0-9]*")
    options += [head + low[common] + text for text in _tail_above(low[common + 1 :], low_open)]
    options += [head + high[common] + text for text in _tail_below(high[common + 1 :], high_open)]
    regex = r"\.(?:" + "|".join(options) + ")"
    shorter = [head[:i] for i in range(1, common + 1) if _less(low, low_open, head[:i].ljust(n, "0"))]
    if shorter:
        regex = rf"(?:{regex}|\.(?:{'|'.join(shorter)}))"
    if _less(low, low_open, "0" * n):
        regex = f"(?:{regex})?"
    return regex


def _less(low: str, is_open: bool, other: str) -> bool:
    return low < other or (low == other and not is_open)


def _tail_above(digits: str, is_open: bool) -> list[str]:
    """Return regexes for digits that are at least `digits`, if all missing digits are zeros."""
    if not digits.strip("0"):
        return ["[0-9]*[1-9][0-9]*"] if is_open else ["[0-9]*"]
    options = [f"{digits[:i]}[{int(digits[i]) + 1}-9][0-9]*" for i in range(len(digits)) if digits[i] != "9"]
    return [*options, digits.rstrip("0") + ("[0-9]*[1-9][0-9]*" if is_open else "[0-9]*")]


def _tail_below(digits: str, is_open: bool) -> list[str]:
    """Return regexes for digits that are at most `digits`, if all missing digits are zeros."""
    digits = digits.rstrip("0")
    if not digits:
        return [] if is_open else ["0*"]
    options = [""]
    for i in range(len(digits)):
        if digits[i] != "0":
            options.append(f"{digits[:i]}[0-{int(digits[i]) - 1}][0-9]*")
        if i > 0:
            options.append(digits[:i])
    if not is_open:
        options.append(digits + "0*")
    return options


def _states(multiple: Fraction) -> int:
    """Return the automaton states of a multiple. Leading and trailing zeros of a decimal number add no states."""
    number = multiple.numerator * 10**400 // multiple.denominator if multiple.denominator > 1 else multiple.numerator
    while number and number % 10 == 0:
        number //= 10
    return number
