"""Incremental detokenization, without incomplete characters."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.tokens.tokenizer import Tokenizer


class StreamDetokenizer:
    """Converts a stream of ids to text. The joined results equal `Tokenizer.decode` of the same ids.

    Bytes of an incomplete character are buffered until the character is complete. `strip_prefix=False` keeps the space
    of the first word, for text that continues a prompt. Control tokens in `shown` are not hidden by `skip_special`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        *,
        strip_prefix: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = shown
        self._strip = strip_prefix and tokenizer.adds_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Return the text that `id` completes, which may be empty."""
        is_hidden = self._skip_special and self._tokenizer.is_special(id) and id not in self._shown
        data, self._strip = self._tokenizer.render(id, self._strip, is_hidden)
        return self._decoder.decode(data)

    def text_of(self, id: int) -> str:
        """Return the text of a single token, U+FFFD for a part of a character."""
        return self._tokenizer.decode([id], strip_prefix=False)

    def finish(self) -> str:
        """Return the remaining text, with U+FFFD for incomplete characters."""
        return self._decoder.decode(b"", final=True)
