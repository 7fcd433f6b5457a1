"""Marks that are control tokens: shown in the text of an answer, so that a parser sees them."""

from __future__ import annotations

from collections.abc import Iterable

from woolly.serving.tools.format import Format
from woolly.text import StreamDetokenizer, Tokenizer

__all__ = ["MarkDetokenizer", "mark_ids", "marks_of"]


class MarkDetokenizer(StreamDetokenizer):
    """Hides control tokens but for some."""

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int]) -> None:
        """`shown` are the ids of those that are text."""
        super().__init__(tokenizer, strip_prefix=False)
        self._shown = shown

    def push(self, id: int) -> str:
        """The text that `id` completes, which may be empty."""
        data, self._strip = self._tokenizer.render(id, self._strip, id not in self._shown)
        return self._decoder.decode(data)


def marks_of(format: Format) -> list[str]:
    """Every mark that a parser of the format looks for."""
    marks = [mark for pair in format.marks for mark in pair if mark]
    return [*marks, "[ARGS]", "[CALL_ID]"] if format.is_named else marks


def mark_ids(tokenizer: Tokenizer, marks: Iterable[str]) -> frozenset[int]:
    """The marks that are control tokens of a vocabulary."""
    found = (tokenizer.encode(mark, add_special=False) for mark in marks)
    return frozenset(ids[0] for ids in found if len(ids) == 1 and tokenizer.is_special(ids[0]))
