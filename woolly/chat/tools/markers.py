"""Marks that are control tokens; a request shows them as text (`Engine.new_request`), so that a parser sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.chat.tools.format import Format
    from woolly.tokens import Tokenizer


def markers_of(format: Format) -> list[str]:
    """Returns every mark that a parser of the format looks for."""
    pairs = (*format.marks, format.section)
    inner: tuple[str, ...] = () if format.label is None else format.label.marks
    if format.tags is not None:
        inner = (*format.tags.key, *format.tags.value, format.tags.end)
    return [mark for mark in (*(mark for pair in pairs for mark in pair), *inner) if mark]


def marker_ids(tokenizer: Tokenizer, marks: Iterable[str]) -> frozenset[int]:
    """Returns the ids of the marks that are control tokens of a vocabulary."""
    found = (tokenizer.encode(mark, add_special=False) for mark in marks)
    return frozenset(ids[0] for ids in found if len(ids) == 1 and tokenizer.is_special(ids[0]))
