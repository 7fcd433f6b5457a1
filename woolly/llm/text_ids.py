"""TextIds: token ids of a text or text pair, with a head and tail that truncation preserves.

Lengths are checked in characters before tokenization, so texts that are far too long are rejected without tokenization.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer

# Upper bound of characters per token; a longer text is rejected without tokenization.
CHARACTERS_PER_TOKEN = 256

_TEMPLATE = "tokenizer.chat_template.rerank"  # layout of query and document in the file
_PLACES = re.compile(r"\{(query|document)\}")


@dataclass(frozen=True)
class TextIds:
    """Token ids; truncation preserves the first `n_head` and the last `n_tail`."""

    ids: tuple[int, ...]
    n_head: int = 0
    n_tail: int = 0

    def cut(self, n: int) -> TextIds | None:
        """Return at most n ids, or None if head and tail do not fit."""
        if len(self.ids) <= n:
            return self
        if self.n_head + self.n_tail >= n:
            return None
        end = self.ids[len(self.ids) - self.n_tail :]
        return TextIds(self.ids[: n - self.n_tail] + end, self.n_head, self.n_tail)


class BatchTokenizer:
    """Tokenizes texts for a model with a maximum of `most` tokens; caches the tokens of queries.

    With `truncate`, longer texts are accepted, and only the part that fits is tokenized.
    """

    def __init__(self, tokenizer: Tokenizer, metadata: Mapping[str, Any], most: int, truncate: bool) -> None:
        self._tokenizer = tokenizer
        template = metadata.get(_TEMPLATE)
        self._template = template if isinstance(template, str) else None
        self._max_tokens = most
        self._max_chars = CHARACTERS_PER_TOKEN * most
        self._truncate = truncate
        self._heads: dict[str, tuple[int, ...]] = {}  # keyed by query

    def text(self, text: Any) -> TextIds:
        """Return the ids of a text with the file's special tokens; return token ids unchanged.

        The strings of a mixed list are tokenized, the first part with special tokens, as in llama-server.
        """
        tokenizer = self._tokenizer
        if isinstance(text, str):
            return TextIds(self._encoded(text, tokenizer.encode), n_tail=tokenizer.n_end)
        if isinstance(text, np.ndarray) and text.ndim == 1:
            text = text.tolist()
        if not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray)):
            raise RequestError(f"the type is {type(text).__name__}; expected text or a list of token ids")
        if len({isinstance(part, str) for part in text}) == 2:
            text = self._mixed(text)
        for token in text:
            is_whole = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
            if not is_whole or not 0 <= token < tokenizer.n_vocab:
                raise RequestError(
                    f"token {token!r} is not in the vocabulary; expected an id from 0 to {tokenizer.n_vocab - 1}",
                    names=(),
                )
        return TextIds(tuple(map(int, text)))

    def _mixed(self, parts: Sequence[Any]) -> list[Any]:
        ids: list[Any] = []
        for i, part in enumerate(parts):
            encode = self._plain if i else self._tokenizer.encode
            ids += self._encoded(part, encode) if isinstance(part, str) else [part]
        return ids

    def pair(self, query: str, document: str) -> TextIds:
        """Return the ids of a query and a document in the model's layout; truncation shortens the document."""
        for what, text in (("query", query), ("document", document)):
            if not isinstance(text, str):
                raise RequestError(f"the {what} is of type {type(text).__name__}; expected text")
        head, template = self._head(query), self._template
        if template is None:
            tail = self._encoded(document, self._tokenizer.encode_second)
            return TextIds(head + tail, len(head), self._tokenizer.n_end)
        end = self._plain(template.rpartition("{document}")[2])
        whole = self._encoded(document, lambda text: self._plain(_filled(template, query, text)))
        return TextIds(whole, len(head), len(end))

    def _head(self, query: str) -> tuple[int, ...]:
        """Return the ids before a document; raise RequestError if the query is too long."""
        head = self._heads.get(query)
        if head is None:
            if len(query) > self._max_chars:
                raise self._too_long(f"the query has {len(query)} characters", len(query) // CHARACTERS_PER_TOKEN)
            if self._template is None:
                head = tuple(self._tokenizer.encode_first(query))
            else:
                head = tuple(self._plain(_filled(self._template.partition("{document}")[0], query, "")))
            if len(head) > self._max_tokens:
                raise self._too_long(f"the query has {len(head)} tokens", len(head))
            self._heads[query] = head
        return head

    def _encoded(self, text: str, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
        if len(text) > self._max_chars:
            if not self._truncate:
                raise self._too_long(f"it has {len(text)} characters", len(text) // CHARACTERS_PER_TOKEN)
            ids = tuple(encode(text[: self._max_chars]))
            if len(ids) > self._max_tokens:
                return ids  # the rest would be truncated
        return tuple(encode(text))

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)

    def _too_long(self, what: str, n_tokens: int) -> RequestError:
        return RequestError(
            f"{what}, but this model takes at most {self._max_tokens} tokens: it is too large; shorten it",
            code="context_length",
            limit=self._max_tokens,
            given=n_tokens,
            names=("truncate",),
        )


def _filled(template: str, query: str, document: str) -> str:
    texts = {"query": query, "document": document}
    return _PLACES.sub(lambda place: texts[place[1]], template)
