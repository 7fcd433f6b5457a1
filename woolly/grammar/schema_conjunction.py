"""Conjunctions: sets of schemas that one value must satisfy together.

A schema meets the target of its `$ref`, the members of its `allOf`, and one option of its `anyOf` and of its `oneOf`.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from woolly.errors import RequestError

Schema = dict[str, Any]
Resolve = Callable[[str], Any]

# llguidance cannot decide whether 6 patterns have a text in common, and its report doubles with each.
MAX_TEXTS = 6
# A remainder takes one state of an automaton: 10,007 compiles in 60 ms, 99,991 in 1 s, 999,983 in 12 s.
MAX_MULTIPLE = 10_000
MAX_DEPTH = 100
MAX_MEMBERS = 200_000  # visits in all: 0.2 s

_TEXTS = ("pattern", "format")


class Conjunctions:
    """Bounds the size of conjunctions, and closes objects without `additionalProperties`."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve  # the schema that a reference points to, or None
        self._measured: dict[int, tuple[int, Fraction]] = {}
        self._n_visits = 0

    def check(self, schema: Schema, pointer: str) -> None:
        """Reject conjunctions whose automata would be too large."""
        texts, multiple = self._measure(schema, pointer, 0)
        if texts > MAX_TEXTS:
            raise RequestError(
                f"the JSON schema joins {texts} patterns, formats and lengths in one string at {pointer};"
                f" at most {MAX_TEXTS} can be joined"
            )
        if (states := _states(multiple)) > MAX_MULTIPLE:
            raise RequestError(
                f"the JSON schema wants multiples of {str(states)[:40]} at {pointer}, all multipleOf taken together"
                f" and without their zeros; at most {MAX_MULTIPLE} can be kept"
            )

    def _measure(self, schema: Schema, pointer: str, depth: int) -> tuple[int, Fraction]:
        """Return the number of string constraints, and the least common multiple of all `multipleOf` (0: none)."""
        if depth > MAX_DEPTH:
            raise RequestError(f"the JSON schema joins schemas of more than {MAX_DEPTH} levels in one value")
        if (found := self._measured.get(id(schema))) is not None:
            return found
        self._measured[id(schema)] = (0, Fraction(0))  # of a reference to itself
        texts = sum(name in schema for name in _TEXTS) + ("minLength" in schema or "maxLength" in schema)
        multiple = _multiple(schema.get("multipleOf"))
        for group in self._groups(schema):
            measures = [self._measure(member, pointer, depth + 1) for member in group]
            texts += max((n for n, _ in measures), default=0)
            multiple = max((_lcm(multiple, other) for _, other in measures), default=multiple)
        self._measured[id(schema)] = texts, multiple
        return texts, multiple

    def close(self, schemas: list[Schema]) -> None:
        """Set `additionalProperties: false` for each object with properties, unless the schema sets it.

        Objects that meet in one value are closed as one, with the names of all: each alone would forbid the names of
        the others. A definition that is used in such a conjunction stays open if it is also used by itself.
        """
        joined: set[int] = set()
        wholes: list[tuple[Schema, list[Schema]]] = []
        for schema in schemas:
            sources = [part for group in self._groups(schema) if (part := self._objects(group))]
            if not isinstance(schema.get("properties"), dict) and len(sources) < 2:
                continue  # its one source is closed by itself
            members = [member for part in sources for member in part]
            joined.update(id(member) for member in members if member is not schema)
            wholes.append((schema, members))
        for schema, members in wholes:
            if id(schema) not in joined:
                _close(schema, [member for member in members if member is not schema])

    def join(self, first: Callable[[Schema], bool], second: Callable[[Schema], bool], schemas: list[Schema]) -> bool:
        """Return True if one value may have to satisfy two schemas of which each meets one condition."""
        for schema in schemas:
            found = self._members([schema])
            if any(map(first, found)) and any(map(second, found)):
                return True
        return False

    def _objects(self, group: list[Schema]) -> list[Schema]:
        """Return the schemas with properties of a group and of all schemas in conjunction with it."""
        return [schema for schema in self._members(group) if isinstance(schema.get("properties"), dict)]

    def _members(self, group: list[Schema]) -> list[Schema]:
        """Return a group and all schemas in conjunction with it."""
        found: list[Schema] = []
        seen: set[int] = set()
        waiting = group[::-1]
        while waiting:
            schema = waiting.pop()
            if id(schema) in seen:
                continue
            seen.add(id(schema))
            self._n_visits += 1
            if self._n_visits > MAX_MEMBERS:
                raise RequestError("the JSON schema joins too many schemas in one value; join fewer by $ref and allOf")
            found.append(schema)
            waiting += [member for inner in self._groups(schema) for member in inner][::-1]
        return found

    def _groups(self, schema: Schema) -> Iterator[list[Schema]]:
        """Yield groups of schemas; one schema of each group is in conjunction with the given one."""
        reference = schema.get("$ref")
        if isinstance(reference, str) and isinstance(target := self._resolve(reference), dict):
            yield [target]
        members = schema.get("allOf")
        if isinstance(members, list):
            yield from ([member] for member in members if isinstance(member, dict))
        for keyword in ("anyOf", "oneOf"):
            options = schema.get(keyword)
            if isinstance(options, list):
                yield [option for option in options if isinstance(option, dict)]


def _close(schema: Schema, members: list[Schema]) -> None:
    if any("additionalProperties" in part for part in (schema, *members)):
        return
    if any("patternProperties" in member for member in members):
        return
    names = dict(schema.get("properties", {}))
    for part in (schema, *members):
        for source in (part.get("properties"), part.get("required")):
            if isinstance(source, (dict, list)):
                names |= {name: True for name in source if isinstance(name, str) and name not in names}
    schema["properties"] = names
    schema["additionalProperties"] = False


def _multiple(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return Fraction(0)  # or llguidance refuses it
    return Fraction(decimal.Decimal(repr(value)))


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    if not a or not b:
        return a or b
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _states(multiple: Fraction) -> int:
    """Return the automaton states of a multiple: leading and trailing zeros of a decimal number cost none."""
    number = multiple.numerator * 10**400 // multiple.denominator if multiple.denominator > 1 else multiple.numerator
    while number and number % 10 == 0:
        number //= 10
    return number
