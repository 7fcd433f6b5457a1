"""Ids back to text, one at a time, without showing half a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.tokens.tokenizer import Tokenizer


class StreamDetokenizer:
    """Turns a stream of ids into text; the joined results equal `Tokenizer.decode` of the same ids.

    Bytes of an incomplete character are held back until it is complete. `strip_prefix=False` keeps the space of the
    first word, for text that continues a prompt. `shown` are control tokens that `skip_special` does not hide.
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
        """Returns the text that `id` completes, which may be empty."""
        is_hidden = self._skip_special and self._tokenizer.is_special(id) and id not in self._shown
        data, self._strip = self._tokenizer.render(id, self._strip, is_hidden)
        return self._decoder.decode(data)

    def text_of(self, id: int) -> str:
        """Returns the text of a token alone; U+FFFD for a part of a character."""
        return self._tokenizer.decode([id], strip_prefix=False)

    def finish(self) -> str:
        """Returns the rest: bytes that never became a character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
