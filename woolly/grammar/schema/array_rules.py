"""Rules of arrays: items of known positions, then a repetition; with counts of `contains`, as states."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.grammar.schema.budget import tick
from woolly.grammar.schema.facts import Conjunction
from woolly.grammar.schema.rules import Loop, Ref, Sequence, Symbol
from woolly.grammar.schema.shapes import ArrayShape

if TYPE_CHECKING:
    from woolly.grammar.schema.writer import Writer

MAX_STATES = 3_000
MAX_UNIQUE = 60  # different items of an array of unique ones: bits of a parameter
MAX_COMPARED = 100  # minItems and maxItems of an array of unique items that are compared
MAX_LISTED = 1_000  # arrays of unique items that are listed one by one
MAX_PREFIX = 3_000
_TOO_MANY_LISTED = "the JSON schema uses 'uniqueItems' with too many arrays; use fewer or equal items"


def array_rules(writer: Writer, shape: ArrayShape) -> list[Sequence]:
    """Return the options of an array."""
    if shape.unique is not None and (shape.high is None or shape.high > 1):
        return _unique(writer, shape)
    if shape.contains:
        return [('"["', _Counted(writer, shape).state(0, (0,) * len(shape.contains)), '"]"')]
    return [('"["', *_items(writer, shape), '"]"')]


def _items(writer: Writer, shape: ArrayShape) -> Sequence:
    """Return items whose number alone is limited."""
    separator, rules = writer.separator, writer.rules
    prefix = shape.prefix if shape.high is None else shape.prefix[: shape.high]
    n = len(prefix)
    if n > MAX_PREFIX:
        raise RequestError(f"the JSON schema has too many prefixItems: {n} in one array; the maximum is {MAX_PREFIX}")
    if n == 0:
        if shape.high == 0:
            return ()
        item = writer.value(shape.tail)
        most = None if shape.high is None else shape.high - 1
        body: Sequence = (*item, Loop((separator, *item), max(shape.low - 1, 0), most))
        return body if shape.low else (Loop(body, 0, 1),)
    least = max(shape.low - n, 0)
    rest: Sequence = ()
    if shape.high is None or shape.high > n:
        most = None if shape.high is None else shape.high - n
        rest = (Loop((separator, *writer.value(shape.tail)), least, most),)
    for i in range(n - 1, -1, -1):
        piece: Sequence = (*((separator,) if i else ()), *writer.value(prefix[i]), *rest)
        rest = piece if i < shape.low else (Loop((rules.add(rules.new_name(), [piece]),), 0, 1),)
    return rest


class _Counted:
    """Writes arrays in which the items that meet some conditions are counted."""

    def __init__(self, writer: Writer, shape: ArrayShape) -> None:
        self._writer = writer
        self._shape = shape
        starts = [fact.start for fact in shape.contains]
        self._n = max([1, len(shape.prefix), shape.low, *starts]) if shape.high is None else shape.high
        self._states: dict[tuple[int, tuple[int, ...]], Ref] = {}

    def state(self, i: int, counts: tuple[int, ...]) -> Ref:
        """Return the items from a position on, after `counts` items that were counted."""
        key = (i, counts)
        if key in self._states:
            return self._states[key]
        rules, shape = self._writer.rules, self._shape
        ref = self._states[key] = Ref(rules.new_name())
        if len(self._states) > MAX_STATES:
            raise RequestError("the JSON schema counts too many items of one array; lower minItems or maxItems")
        options: list[Sequence] = []
        if i >= shape.low and all(n >= fact.low for n, fact in zip(counts, shape.contains, strict=True)):
            options.append(())
        if shape.high is None or i < shape.high:
            separator: Sequence = (self._writer.separator,) if i else ()
            repeated = None
            for after, child in self._choices(i, counts):
                item = (*separator, *self._writer.value(child))
                if i == self._n and after == counts:
                    repeated = Loop(item, 0, None)
                else:
                    options.append((*item, self.state(min(i + 1, self._n), after)))
            if repeated is not None:
                options = [(repeated, *option) for option in options]
        rules.add(ref.name, options)
        return ref

    def _choices(self, i: int, counts: tuple[int, ...]) -> list[tuple[tuple[int, ...], Conjunction]]:
        shape = self._shape
        base = shape.prefix[i] if i < len(shape.prefix) else shape.tail
        per_fact: list[list[tuple[int, Conjunction]]] = []
        for n, fact in zip(counts, shape.contains, strict=True):
            if i < fact.start:
                per_fact.append([(n, frozenset())])
                continue
            choices: list[tuple[int, Conjunction]] = [(n, fact.opposite if fact.high is not None else frozenset())]
            if n < (fact.low if fact.high is None else fact.high):
                choices.append((n + 1, fact.child))
            per_fact.append(choices)
        found = []
        for combined in product(*per_fact):
            child = base.union(*(child for _, child in combined))
            found.append((tuple(n for n, _ in combined), child))
        return found


def _unique(writer: Writer, shape: ArrayShape) -> list[Sequence]:
    assert shape.unique is not None
    n = len(shape.prefix)
    tail = writer.texts(shape.tail)
    prefix = [writer.texts(child) for child in shape.prefix]
    if shape.contains or tail is None or any(texts is None for texts in prefix):
        most = shape.high
        if most is None and tail == []:
            most = n
        if most is not None and most <= 1:
            return array_rules(writer, replace(shape, unique=None, high=most)) if shape.low <= most else []
        return _captured(writer, shape)
    if n == 0:
        return _permutations(writer, shape, tail)
    return _listed(writer, shape, [texts for texts in prefix if texts is not None], tail)


def _captured(writer: Writer, shape: ArrayShape) -> list[Sequence]:
    """Return arrays whose items are recorded, so that the constraint can compare them."""
    assert shape.unique is not None
    if shape.contains or max(shape.low, shape.high or 0, len(shape.prefix)) > MAX_COMPARED:
        raise RequestError(
            f"the JSON schema uses 'uniqueItems' at {shape.unique.pointer} with 'contains' or more than {MAX_COMPARED}"
            " items, which cannot be enforced; remove one of them"
        )
    rules = writer.rules
    options: list[Sequence] = [('"[" "]"',)] if shape.low == 0 else []
    before: Sequence = ()
    n = max(shape.low, len(shape.prefix), 1) if shape.high is None else shape.high
    for i in range(n):
        item = writer.value(shape.prefix[i] if i < len(shape.prefix) else shape.tail)
        ref = rules.add(rules.new_name(), [(*before, *item)])
        rules.capture(ref.name)
        if i + 1 >= shape.low:
            options.append(('"["', ref, '"]"'))
        before = (ref, writer.separator)
    if shape.high is None:
        last = before[0]
        name = rules.new_name()
        rules.capture(name)
        item = writer.value(shape.tail)
        rules.add(name, [(last, writer.separator, *item), (Ref(name), writer.separator, *item)])
        options.append(('"["', Ref(name), '"]"'))
    return options


def _permutations(writer: Writer, shape: ArrayShape, texts: list[str]) -> list[Sequence]:
    """Return arrays of different texts. A bit of the rule's parameter says that a text was used."""
    most = len(texts) if shape.high is None else min(shape.high, len(texts))
    if len(texts) > MAX_UNIQUE:
        raise RequestError(
            f"the JSON schema uses 'uniqueItems' with {len(texts)} different items; the maximum is {MAX_UNIQUE}"
        )
    options: list[Sequence] = [('"[" "]"',)] if shape.low == 0 else []
    if most and most >= shape.low:
        name = writer.rules.new_name()
        literals = [writer.rules.terminal(text) for text in texts]
        lines = [f'{name}::_: "" %if bit_count_ge(_, {shape.low})']
        for i, text in enumerate(literals):
            condition = f"and(bit_clear({i}), bit_count_lt(_, {most}))"
            lines.append(f"    | {writer.separator} {text} {name}::set_bit({i}) %if {condition}")
        writer.rules.add_line("\n".join(lines))
        options += [(f'"[" {text} {name}::{1 << i:#x} "]"',) for i, text in enumerate(literals)]
    return options


def _listed(writer: Writer, shape: ArrayShape, prefix: list[list[str]], tail: list[str]) -> list[Sequence]:
    """Return arrays of different texts one by one."""
    arrays: list[tuple[str, ...]] = [()]
    found: list[tuple[str, ...]] = [()] if shape.low == 0 else []
    most = len(prefix) + len(tail)
    for i in range(most if shape.high is None else min(shape.high, most)):
        tick()
        texts = prefix[i] if i < len(prefix) else tail
        if len(arrays) * len(texts) > 100 * MAX_LISTED:
            raise RequestError(_TOO_MANY_LISTED)
        arrays = [(*array, text) for array in arrays for text in texts if text not in array]
        if i + 1 >= shape.low:
            found += arrays
        if len(found) + len(arrays) > MAX_LISTED:
            raise RequestError(_TOO_MANY_LISTED)
    options: list[Sequence] = []
    for array in found:
        symbols: list[Symbol] = ['"["']
        for i, text in enumerate(array):
            symbols += ([writer.separator] if i else []) + [writer.rules.terminal(text)]
        options.append((*symbols, '"]"'))
    return options
