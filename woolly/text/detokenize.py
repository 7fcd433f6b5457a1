"""Ids back to text, one at a time, without ever showing half a character."""

from __future__ import annotations

import codecs

from woolly.text.tokenizer import Tokenizer

__all__ = ["StreamDetokenizer"]


class StreamDetokenizer:
    """Turns ids into text as they come; all that it returns, joined, is `Tokenizer.decode` of the same ids.

    Bytes that do not end a character yet are kept back until they do. `strip_prefix=False` keeps the space of the
    first word, for text that continues a prompt.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, *, strip_prefix: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip = strip_prefix and tokenizer.adds_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that `id` completes, which may be empty."""
        data, self._strip = self._tokenizer.render(id, self._strip, self._skip_special)
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left: bytes that never became a character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)
