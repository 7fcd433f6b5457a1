"""Rules of objects: members in the order of the schema, then members with other names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.grammar.schema.language import both, is_empty, literal, matches, negate
from woolly.grammar.schema.quoting import has_control, quote
from woolly.grammar.schema.rules import Loop, Ref, Sequence, Symbol
from woolly.grammar.schema.shapes import Cell, Member, ObjectShape

if TYPE_CHECKING:
    from woolly.grammar.schema.facts import Exists
    from woolly.grammar.schema.writer import Writer

MAX_STATES = 3_000
MAX_SHAPES = 200
MAX_MEMBERS = 3_000


def object_rules(writer: Writer, shape: ObjectShape) -> list[Sequence]:
    """Return the options of an object."""
    if len(shape.members) > MAX_MEMBERS:
        raise RequestError(
            f"the JSON schema has too many properties: {len(shape.members)} in one object; the maximum is {MAX_MEMBERS}"
        )
    options: list[Sequence] = []
    shapes = _witnessed(shape)
    if len(shapes) > MAX_SHAPES:
        raise RequestError("the JSON schema excludes too many properties of one object; use fewer 'not' and oneOf")
    for members, witness in shapes:
        body = _Members(writer, replace(shape, members=members), witness).write()
        options.append(('"{"', *body, '"}"'))
    return options


def quoted_name(name: str) -> str:
    """Return the expression of a property name in Lark."""
    if has_control(name):
        return quote(literal(name))
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)


def _witnessed(shape: ObjectShape) -> list[tuple[tuple[Member, ...], Cell | None]]:
    """Return members that show that all `exists` hold, with the last member if that has another name.

    Another name may be repeated. Then its last value counts, which is why the witness is the last member.
    """
    found: list[tuple[tuple[Member, ...], Cell | None]] = [(shape.members, None)]
    for condition in shape.exists:
        more = []
        for members, last in found:
            for i, member in enumerate(members):
                if _holds(condition, member.name):
                    shown = Member(member.name, member.child | condition.child, True)
                    more.append(((*members[:i], shown, *members[i + 1 :]), last))
            for cell in shape.cells:
                language = both([cell.language, condition.inside, *map(negate, condition.outside)])
                if condition.names:
                    language = both([language, *(negate(literal(name)) for name in sorted(condition.names))])
                if is_empty(language):
                    continue
                if last is None:
                    more.append((members, Cell(language, cell.child | condition.child)))
                else:
                    both_names = both([language, last.language])
                    if not is_empty(both_names):
                        more.append((members, Cell(both_names, last.child | condition.child)))
        found = more
    return found


def _holds(condition: Exists, name: str) -> bool:
    return (
        name not in condition.names
        and matches(condition.inside, name)
        and not any(matches(language, name) for language in condition.outside)
    )


class _Members:
    """Writes the members of one object."""

    def __init__(self, writer: Writer, shape: ObjectShape, witness: Cell | None) -> None:
        self._writer = writer
        self._low, self._high = shape.low, shape.high
        self._members = shape.members
        self._witness = witness
        self._cells = shape.cells
        self._states: dict[tuple[int, int], Ref] = {}
        self._tails: dict[int, Sequence] = {}
        separator = writer.separator
        self._others: Sequence = ()
        if shape.cells:
            cells = [self._cell(cell) for cell in shape.cells]
            self._others = cells[0] if len(cells) == 1 else (writer.rules.add(writer.rules.new_name(), cells),)
        self._more: Sequence = (separator, *self._others)

    def write(self) -> Sequence:
        required = sum(member.is_required for member in self._members) + (self._witness is not None)
        if self._high is None and self._low <= required:
            return self._plain()
        if self._high is None and self._low > len(self._members) + bool(self._cells or self._witness):
            if self._cells:
                raise RequestError(
                    f"the JSON schema has minProperties {self._low} beside properties of any name, which may repeat;"
                    " list the required properties in 'required'"
                )
            return (Ref(self._writer.nothing),)
        return (self._state(0, 0),)

    def _cell(self, cell: Cell) -> Sequence:
        name = self._writer.rules.terminal(quote(cell.language))
        return (name, self._writer.colon, *self._writer.value(cell.child))

    def _member(self, i: int) -> Sequence:
        member = self._members[i]
        return (self._writer.name(member.name), self._writer.colon, *self._writer.value(member.child))

    def _end(self, is_first: bool) -> list[Sequence]:
        """Return the options after all members with known names."""
        separator = self._writer.separator
        if self._witness is not None:
            last = self._cell(self._witness)
            options: list[Sequence] = [last if is_first else (separator, *last)]
            if self._others:
                before: Symbol = Loop(self._more, 0, None)
                if is_first:
                    options.append((*self._others, before, separator, *last))
                else:
                    options = [(before, separator, *last)]
            return options
        if not self._others:
            return [()]
        if is_first:
            return [(), (*self._others, Loop(self._more, 0, None))]
        return [(Loop(self._more, 0, None),)]

    def _plain(self) -> Sequence:
        """Return members without limits on their number."""
        n = len(self._members)
        first = next((i for i in range(n) if self._members[i].is_required), n)
        if first == 0 and n:
            return (*self._member(0), *self._rest(1))
        rules = self._writer.rules
        rest: Sequence = self._rest(first + 1)
        options: list[Sequence] = []
        for i in range(min(first, n - 1), -1, -1):
            member: Sequence = self._member(i)
            if first:
                member = (rules.add(rules.new_name(), [member]),)
                rest = (rules.add(rules.new_name(), [rest]),)
            options.append((*member, *rest))
            again = (self._writer.separator, *member)
            rest = (*again, *rest) if self._members[i].is_required else (Loop(again, 0, 1), *rest)
        options.reverse()
        if first == n:
            options += self._end(is_first=True)
        return (rules.add(rules.new_name(), options),)

    def _rest(self, i: int) -> Sequence:
        """Return the members from one on, after another member."""
        out: list[Symbol] = []
        separator = self._writer.separator
        for k in range(i, len(self._members)):
            if k > i and (k - i) % 32 == 0:
                return (*out, self._shared(k))
            item = (separator, *self._member(k))
            out += item if self._members[k].is_required else [Loop(item, 0, 1)]
        options = self._end(is_first=False)
        if len(options) == 1:
            return (*out, *options[0])
        return (*out, self._writer.rules.add(self._writer.rules.new_name(), options))

    def _shared(self, k: int) -> Ref:
        if k not in self._tails:
            rules = self._writer.rules
            self._tails[k] = (rules.add(rules.new_name(), [self._rest(k)]),)
        (ref,) = self._tails[k]
        assert isinstance(ref, Ref)
        return ref

    def _state(self, i: int, count: int) -> Ref:
        """Return the members from one on, after a number of members."""
        found = self._states.get((i, count))
        if found is not None:
            return found
        rules = self._writer.rules
        found = self._states[i, count] = Ref(rules.new_name())
        if len(self._states) > MAX_STATES:
            raise RequestError("the JSON schema counts too many properties of one object; remove min- or maxProperties")
        most = self._low if self._high is None else self._high
        options: list[Sequence] = []
        if i < len(self._members):
            member = self._members[i]
            if self._high is None or count < self._high:
                separator = (self._writer.separator,) if count else ()
                options.append((*separator, *self._member(i), self._state(i + 1, min(count + 1, most))))
            if not member.is_required:
                options.append((self._state(i + 1, count),))
        else:
            options += self._counted_end(count)
        rules.add(found.name, options)
        return found

    def _counted_end(self, count: int) -> Iterator[Sequence]:
        left = None if self._high is None else self._high - count
        is_first = count == 0
        separator = self._writer.separator
        if self._witness is not None:
            if count + 1 < self._low or (left is not None and left < 1):
                return
            last = self._cell(self._witness)
            yield last if is_first else (separator, *last)
            most = None if left is None else left - 2
            if self._others and (most is None or most >= 0):
                head = self._others if is_first else self._more
                yield (*head, Loop(self._more, 0, most), separator, *last)
            return
        if count >= self._low:
            yield ()
        if self._others and count + 1 >= self._low and (left is None or left > 0):
            head = self._others if is_first else self._more
            yield (*head, Loop(self._more, 0, None if left is None else left - 1))
