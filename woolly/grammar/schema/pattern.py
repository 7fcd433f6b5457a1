"""Regular expressions of JSON schemas, translated to languages."""

from __future__ import annotations

from functools import lru_cache

from woolly.errors import RequestError
from woolly.grammar.schema.language import (
    ANY,
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Chars,
    Language,
    both,
    concat,
    negate,
    nullable,
    repeat,
    union,
)
from woolly.grammar.schema.pattern_parser import (
    Ahead,
    Anchor,
    Parser,
    PatternChoice,
    PatternError,
    PatternNode,
    PatternSequence,
    Repeated,
)


@lru_cache(1000)
def read_pattern(source: str) -> Language:
    """Return the text in which a pattern finds a match. Raise RequestError for an unsupported pattern."""
    try:
        node = Parser(source).parse()
        if not _has_anchor(node, "^"):
            return concat([ANY, _translate(node, ANY, True)])
        return union([_translate(node, ANY, True), concat([ANY_CHAR, ANY, _translate(node, ANY, False)])])
    except PatternError as error:
        raise RequestError(
            f"the JSON schema has the pattern {source[:60]!r}, which cannot be enforced: {error}"
        ) from None


def _translate(node: PatternNode, rest: Language, at_start: bool) -> Language:
    """Return the text from here to the end, if `node` matches first and `rest` is the text after it."""
    if isinstance(node, Chars) or not _has_anchor(node, "^$="):
        return concat([_plain(node), rest])
    if isinstance(node, PatternSequence):
        starts = []
        for item in node.items:
            starts.append(at_start)
            if at_start and not _is_empty(item):
                if _can_be_empty(item) and any(_has_anchor(other, "^") for other in node.items[len(starts) :]):
                    raise PatternError("'^' comes after a part that may be empty; put it first")
                at_start = False
        for item, is_start in zip(reversed(node.items), reversed(starts), strict=True):
            rest = _translate(item, rest, is_start)
        return rest
    if isinstance(node, PatternChoice):
        return union(_translate(item, rest, at_start) for item in node.items)
    if isinstance(node, Repeated):
        if node.high != 1:
            raise PatternError("'^', '$' and '(?=' inside a repetition are not supported")
        inner = _translate(node.item, rest, at_start)
        return inner if node.low == 1 else union([inner, rest])
    if isinstance(node, Anchor):
        if node.kind == "^":
            return rest if at_start else NOTHING
        return EMPTY if nullable(rest) else NOTHING
    ahead = _translate(node.item, ANY, at_start)
    return both([rest, negate(ahead) if node.is_negative else ahead])


def _plain(node: PatternNode) -> Language:
    """Return the language of a node without anchors and look-ahead."""
    if isinstance(node, PatternSequence):
        return concat(map(_plain, node.items))
    if isinstance(node, PatternChoice):
        return union(map(_plain, node.items))
    if isinstance(node, Repeated):
        return repeat(_plain(node.item), node.low, node.high)
    assert isinstance(node, Chars)
    return node


def _has_anchor(node: PatternNode, kinds: str) -> bool:
    if isinstance(node, Anchor):
        return node.kind in kinds
    if isinstance(node, Ahead):
        return "=" in kinds or _has_anchor(node.item, kinds)
    if isinstance(node, (PatternSequence, PatternChoice)):
        return any(_has_anchor(item, kinds) for item in node.items)
    return isinstance(node, Repeated) and _has_anchor(node.item, kinds)


def _is_empty(node: PatternNode) -> bool:
    """Return True if a node matches only the empty text."""
    if isinstance(node, (PatternSequence, PatternChoice)):
        return all(map(_is_empty, node.items))
    return isinstance(node, (Anchor, Ahead))


def _can_be_empty(node: PatternNode) -> bool:
    if isinstance(node, PatternSequence):
        return all(map(_can_be_empty, node.items))
    if isinstance(node, PatternChoice):
        return any(map(_can_be_empty, node.items))
    if isinstance(node, Repeated):
        return node.low == 0 or _can_be_empty(node.item)
    return not isinstance(node, Chars)
