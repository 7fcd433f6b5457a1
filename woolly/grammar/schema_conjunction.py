"""Conjunctions: sets of schemas that a single value must satisfy.

A schema is in conjunction with the target of its `$ref`, the members of `allOf`, and one option each of `anyOf` and
`oneOf`.
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

# llguidance cannot decide if 6 patterns have a common match, and its report doubles with each pattern.
MAX_TEXTS = 6
# Each remainder is a state of an automaton: 10,007 states compile in 60 ms, 99,991 in 1 s, 999,983 in 12 s.
MAX_MULTIPLE = 10_000
MAX_DEPTH = 100
MAX_MEMBERS = 200_000  # total number of visits, which takes 0.2 s

_TEXTS = ("pattern", "format")


class Conjunctions:
    """Limits the size of conjunctions, and closes objects without `additionalProperties`."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve  # returns the target of a reference, or None
        self._measured: dict[int, tuple[int, Fraction]] = {}
        self._n_visits = 0

    def check(self, schema: Schema, pointer: str) -> None:
        """Reject conjunctions with automata that are too large."""
        texts, multiple = self._measure(schema, pointer, 0)
        if texts > MAX_TEXTS:
            raise RequestError(
                f"the JSON schema combines {texts} patterns, formats and lengths for one string at {pointer}; the"
                f" maximum is {MAX_TEXTS}"
            )
        if (states := _states(multiple)) > MAX_MULTIPLE:
            raise RequestError(
                f"the JSON schema requires multiples of {str(states)[:40]} at {pointer}, if all multipleOf are"
                f" combined and their zeros removed; the maximum is {MAX_MULTIPLE}"
            )

    def _measure(self, schema: Schema, pointer: str, depth: int) -> tuple[int, Fraction]:
        """Return the number of string constraints, and the least common multiple of all `multipleOf` (0: none)."""
        if depth > MAX_DEPTH:
            raise RequestError(f"the JSON schema combines more than {MAX_DEPTH} levels of schemas for one value")
        if (found := self._measured.get(id(schema))) is not None:
            return found
        self._measured[id(schema)] = (0, Fraction(0))  # used if the schema refers to itself
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

        Objects of one conjunction are closed together, with the property names of all, because each object alone would
        forbid the names of the others. A definition that is used both in a conjunction and by itself stays open.
        """
        joined: set[int] = set()
        wholes: list[tuple[Schema, list[Schema]]] = []
        for schema in schemas:
            sources = [part for group in self._groups(schema) if (part := self._objects(group))]
            if not isinstance(schema.get("properties"), dict) and len(sources) < 2:
                continue  # a single schema is closed by itself
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
        """Return the schemas with properties in a group and in all schemas in conjunction with it."""
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
                raise RequestError("the JSON schema combines too many schemas for one value; use fewer $ref and allOf")
            found.append(schema)
            waiting += [member for inner in self._groups(schema) for member in inner][::-1]
        return found

    def _groups(self, schema: Schema) -> Iterator[list[Schema]]:
        """Yield groups of schemas. One schema of each group is in conjunction with the given schema."""
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
        return Fraction(0)  # rejected by llguidance
    return Fraction(decimal.Decimal(repr(value)))


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    if not a or not b:
        return a or b
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def _states(multiple: Fraction) -> int:
    """Return the automaton states of a multiple. Leading and trailing zeros of a decimal number add no states."""
    number = multiple.numerator * 10**400 // multiple.denominator if multiple.denominator > 1 else multiple.numerator
    while number and number % 10 == 0:
        number //= 10
    return number
