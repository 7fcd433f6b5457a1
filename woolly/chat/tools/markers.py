"""Markers that are control tokens. `Engine.new_request` includes them in the text of an answer, for the parser."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.chat.tools.format import Format
    from woolly.tokens import Tokenizer


# Strings that may be control tokens. MiniMax M3 writes a control token before each tag.
TOKEN = re.compile(r"\]<\]\w+\[>\[|<[^<>\s]+>|\[/?[A-Z_]+\]")


def markers_of(format: Format) -> list[str]:
    """Return all markers that a parser of the format recognizes."""
    texts = [text for pair in (*format.marks, format.section) for text in pair]
    texts += [format.between, format.lead, format.text_end, *format.frame]
    if format.label is not None:
        texts += [*format.label.marks, format.label.before, format.label.after, format.label.end]
    if format.tags is not None:
        tags = format.tags
        texts += [*tags.name, *tags.key, *tags.value, tags.end, *tags.quote, *(text for _, text in tags.types)]
    found = [marker for text in texts for marker in (text.strip(), *TOKEN.findall(text)) if marker]
    return list(dict.fromkeys(found))


def marker_ids(tokenizer: Tokenizer, marks: Iterable[str]) -> frozenset[int]:
    """Return the ids of markers that are control tokens in a vocabulary."""
    found = (tokenizer.encode(mark, add_special=False) for mark in marks)
    return frozenset(ids[0] for ids in found if len(ids) == 1 and tokenizer.is_special(ids[0]))
