"""Writer: the grammar of all values that a schema describes."""

from __future__ import annotations

import json
from collections import deque
from decimal import Decimal
from typing import TYPE_CHECKING

from woolly.errors import RequestError
from woolly.grammar.schema.array_rules import array_rules
from woolly.grammar.schema.expand import TYPES, Expander
from woolly.grammar.schema.facts import Conjunction
from woolly.grammar.schema.keywords import NEGATIVE, POSITIVE
from woolly.grammar.schema.language import literal
from woolly.grammar.schema.numbers import Numbers, spell
from woolly.grammar.schema.object_rules import object_rules, quoted_name
from woolly.grammar.schema.quoting import has_control, quote
from woolly.grammar.schema.rules import Ref, Rules, Sequence
from woolly.grammar.schema.shapes import Strings, array_shape, booleans, numbers, object_shape, strings

if TYPE_CHECKING:
    from woolly.grammar.schema.documents import Documents

MAX_RULES = 20_000
MAX_RANGE = 60


class Writer:
    """Writes one rule for each condition on a value, and those of the values inside."""

    def __init__(self, documents: Documents, separator: str, colon: str) -> None:
        self.rules = Rules()
        self.separator, self.colon = separator, colon
        self.nothing = self.rules.add(self.rules.new_name(), []).name
        self._x = Expander(documents, POSITIVE, NEGATIVE)
        self._values: dict[Conjunction, Sequence] = {}
        self._waiting: deque[tuple[str, Conjunction]] = deque()

    def write(self) -> str:
        """Return the grammar as Lark."""
        root = self._x.documents.root
        conjunction = self._x.conjunction(self._x.keep(root))
        (start,) = self.value(conjunction)
        assert isinstance(start, Ref)
        n = 0
        while self._waiting:
            name, condition = self._waiting.popleft()
            self.rules.add(name, self._options(condition))
            n += 1
            if n > MAX_RULES:
                raise RequestError(f"the JSON schema makes a grammar of more than {MAX_RULES} rules; make it simpler")
        text = self.rules.write(start.name)
        if text is None:
            raise RequestError("the JSON schema cannot be used: no value satisfies it")
        return text

    def value(self, conjunction: Conjunction) -> Sequence:
        """Return the symbols of a value that meets a condition."""
        found = self._values.get(conjunction)
        if found is None:
            name = self.rules.new_name()
            found = self._values[conjunction] = (Ref(name),)
            self._waiting.append((name, conjunction))
        return found

    def name(self, name: str) -> str:
        """Return the symbol of a property name."""
        text = quoted_name(name)
        return text if text.startswith('"') else self.rules.terminal(text)

    def texts(self, conjunction: Conjunction) -> list[str] | None:
        """Return expressions of all values that meet a condition; None if they are too many to list."""
        found: dict[str, None] = {}
        for kind in TYPES:
            for option in self._x.alternatives(conjunction, kind):
                if kind == "null":
                    found['"null"'] = None
                elif kind == "boolean":
                    found |= dict.fromkeys(f'"{str(value).lower()}"' for value in sorted(booleans(option)))
                elif kind == "number":
                    values = _listed(numbers(option))
                    if values is None:
                        return None
                    found |= dict.fromkeys(f'"{spell(value)}"' for value in values)
                elif kind == "string":
                    text = strings(option)
                    if text is None:
                        continue
                    if text.values is None:
                        return None
                    found |= dict.fromkeys(_text(value) for value in sorted(text.values))
                else:
                    return None
        return list(found)

    def _options(self, conjunction: Conjunction) -> list[Sequence]:
        terminals: dict[str, None] = {}
        options: list[Sequence] = []
        for kind in TYPES:
            for facts in self._x.alternatives(conjunction, kind):
                if kind == "null":
                    terminals['"null"'] = None
                elif kind == "boolean":
                    terminals |= dict.fromkeys(f'"{str(value).lower()}"' for value in sorted(booleans(facts)))
                elif kind == "number":
                    found = numbers(facts)
                    if found is None:
                        continue
                    expression = found.expression()
                    if expression.startswith("%json"):
                        options.append((self._leaf(expression),))
                    else:
                        terminals[expression] = None
                elif kind == "string":
                    if (text := strings(facts)) is not None:
                        terminals |= dict.fromkeys(_strings(text))
                elif kind == "array":
                    if (array := array_shape(facts)) is not None:
                        options += array_rules(self, array)
                elif (shape := object_shape(self._x, facts)) is not None:
                    options += object_rules(self, shape)
        if terminals:
            options.insert(0, (self.rules.terminal(" | ".join(terminals)),))
        return options

    def _leaf(self, expression: str) -> str:
        leaf = json.loads(expression.removeprefix("%json "))
        return "%json " + json.dumps(leaf | {"x-guidance": {"whitespace_flexible": False}})


def _strings(text: Strings) -> list[str]:
    if text.values is not None:
        return [_text(value) for value in sorted(text.values)]
    return [quote(text.language)]


def _text(value: str) -> str:
    if has_control(value):
        return quote(literal(value))
    return json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)


def _listed(found: Numbers | None) -> list[Decimal] | None:
    if found is None:
        return []
    if found.values is not None:
        return sorted(found.values)
    if found.kind != "integer" or found.low is None or found.high is None or found.high - found.low > MAX_RANGE * 10:
        return None
    kept = [value for value in map(Decimal, range(int(found.low), int(found.high) + 1)) if found.contains(value)]
    return kept if len(kept) <= MAX_RANGE else None
