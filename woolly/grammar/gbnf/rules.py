"""Rewrites of GBNF rules: one form for each string, loops instead of recursion. Also finds regular rules."""

from __future__ import annotations

from woolly.grammar.gbnf.nodes import (
    Alternatives,
    Characters,
    Concat,
    Expression,
    Literal,
    Reference,
    Repeat,
    closure,
    references,
)

EMPTY = Concat(())
MAX_TEXT = 64  # maximum length of an inlined rule; rules that double each other would grow exponentially


def simplify(rules: dict[str, Expression]) -> dict[str, Expression]:
    """Join adjacent literals, and drop empty items and duplicate alternatives.

    llguidance fails if two alternatives are the same string in different parts.
    """
    rules = dict(rules)
    texts: dict[str, Expression] = {}
    for _ in range(8):  # each round inlines rules that are one string; of a longer chain of such rules, some may remain
        before = dict(rules)
        for name in reversed(before):
            rules[name] = _simplified(rules[name], texts)
            rule = rules[name]
            if rule == EMPTY or (isinstance(rule, Literal) and len(rule.text) <= MAX_TEXT):
                texts[name] = rule
        if rules == before:
            break
    return rules


def unroll_recursion(rules: dict[str, Expression]) -> dict[str, Expression]:
    """Rewrite `r ::= a r | b` as `a* b`, and `r ::= r a | b` as `b a*`. Tail and head recursion become regular."""
    return {name: _unrolled(name, rule) for name, rule in rules.items()}


def regular_rules(rules: dict[str, Expression]) -> set[str]:
    """Return the rules that do not reach a recursive rule. Each of them is a regular expression."""
    return closure(rules, lambda rule, known: all(name in known for name in references(rule)))


def _simplified(item: Expression, texts: dict[str, Expression]) -> Expression:
    if isinstance(item, Reference):
        return texts.get(item.name, item)
    if isinstance(item, Literal):
        return item if item.text else EMPTY
    if isinstance(item, Characters):
        low, high = item.ranges[0]
        return Literal(chr(low)) if len(item.ranges) == 1 and low == high else item
    if isinstance(item, Concat):
        return _sequence([_simplified(part, texts) for part in item.items])
    if isinstance(item, Alternatives):
        options: list[Expression] = []
        for option in item.options:
            simple = _simplified(option, texts)
            options += simple.options if isinstance(simple, Alternatives) else (simple,)
        return _choice(options)
    if isinstance(item, Repeat):
        inner = _simplified(item.item, texts)
        if item.high == 0 or inner == EMPTY:
            return EMPTY
        return inner if (item.low, item.high) == (1, 1) else Repeat(inner, item.low, item.high)
    return item


def _unrolled(name: str, rule: Expression) -> Expression:
    if name not in set(references(rule)):
        return rule
    for tail in (True, False):
        if (parts := _split(name, rule, tail)) is None:
            continue
        repeated = [part for part in parts[0] if part != EMPTY]
        if not parts[1]:
            return rule  # never ends; the parser rejects such rules
        once = _choice(parts[1])
        if not repeated:
            return once
        many = Repeat(_choice(repeated), 0, None)
        return _sequence([many, once] if tail else [once, many])
    return rule


def _split(name: str, item: Expression, tail: bool) -> tuple[list[Expression], list[Expression]] | None:
    """Return (p, q) such that the item is `p name | q`, or `name p | q` if not `tail`. Return None if impossible."""
    if name not in set(references(item)):
        return [], [item]
    if isinstance(item, Reference):
        return [EMPTY], []
    if isinstance(item, Alternatives):
        before: list[Expression] = []
        rest: list[Expression] = []
        for option in item.options:
            if (parts := _split(name, option, tail)) is None:
                return None
            before += parts[0]
            rest += parts[1]
        return before, rest
    if isinstance(item, Repeat) and (item.low, item.high) == (0, 1):
        parts = _split(name, item.item, tail)
        return None if parts is None else (parts[0], [*parts[1], EMPTY])
    if isinstance(item, Concat):
        others, last = (item.items[:-1], item.items[-1]) if tail else (item.items[1:], item.items[0])
        parts = None if any(name in set(references(other)) for other in others) else _split(name, last, tail)
        if parts is None:
            return None

        def joined(part: Expression) -> Expression:
            return _sequence([*others, part] if tail else [part, *others])

        return [joined(part) for part in parts[0]], [joined(part) for part in parts[1]]
    return None


def _sequence(items: list[Expression]) -> Expression:
    flat: list[Expression] = []
    for item in items:
        for part in item.items if isinstance(item, Concat) else (item,):
            if flat and isinstance(part, Literal) and isinstance(before := flat[-1], Literal):
                flat[-1] = Literal(before.text + part.text)
            else:
                flat.append(part)
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def _choice(options: list[Expression]) -> Expression:
    unique = tuple(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else Alternatives(unique)
