"""TextIds: the ids of a text or of a pair of texts, and which of them a cut must keep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from woolly.errors import RequestError
from woolly.tokens import Tokenizer

__all__ = ["TextIds"]

_TEMPLATE = "tokenizer.chat_template.rerank"  # how a file lays out a query and a document, if it has tokens of its own
_PLACES = re.compile(r"\{(query|document)\}")


@dataclass(frozen=True)
class TextIds:
    """The ids, of which the first `n_head` and the last `n_tail` stay if the text is cut."""

    ids: tuple[int, ...]
    n_head: int = 0
    n_tail: int = 0

    @classmethod
    def of(cls, text: Any, tokenizer: Tokenizer) -> TextIds:
        """The ids of a text, with what the file puts around texts, or given ids as they are."""
        if isinstance(text, str):
            return cls(tuple(tokenizer.encode(text)), n_tail=tokenizer.n_end)
        if not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray)):
            raise RequestError(f"it is of type {type(text).__name__}; text or a list of token ids was expected")
        for token in text:
            is_whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            if not is_whole or not 0 <= token < tokenizer.n_vocab:
                raise RequestError(
                    f"token {token!r} is not an id of this vocabulary (0 to {tokenizer.n_vocab - 1})", names=()
                )
        return cls(tuple(map(int, text)))

    @classmethod
    def of_pair(cls, query: str, document: str, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> TextIds:
        """The ids of a query and a document as the model was trained to read them; a cut shortens the document."""
        for what, text in (("query", query), ("document", document)):
            if not isinstance(text, str):
                raise RequestError(f"the {what} is of type {type(text).__name__}; text was expected")
        template = metadata.get(_TEMPLATE)
        if not isinstance(template, str):
            before, after = tokenizer.encode_pair(query, document)
            return cls((*before, *after), len(before), tokenizer.n_end)
        texts = {"query": query, "document": document}
        whole, head, tail = (
            tokenizer.encode(_PLACES.sub(lambda place: texts[place[1]], part), add_special=False)
            for part in (template, template.partition("{document}")[0], template.rpartition("{document}")[2])
        )
        return cls(tuple(whole), len(head), len(tail))

    def cut(self, n: int) -> TextIds | None:
        """Returns at most n ids; None if what must stay is longer."""
        if len(self.ids) <= n:
            return self
        if self.n_head + self.n_tail >= n:
            return None
        end = self.ids[len(self.ids) - self.n_tail :]
        return TextIds(self.ids[: n - self.n_tail] + end, self.n_head, self.n_tail)
