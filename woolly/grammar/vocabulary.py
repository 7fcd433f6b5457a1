"""Adapter of a tokenizer for llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from woolly.tokens import Tokenizer


def make_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """Return llguidance's tokenizer. Takes 0.3 s for 49k tokens and 1 s for 152k."""
    from llguidance import LLTokenizer

    wrapper: Any = _Vocabulary(tokenizer)
    return LLTokenizer(wrapper, eos_token=sorted(tokenizer.stop_ids) or None)


class _Vocabulary:
    """Attributes and call that llguidance expects of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[bytes, int] = {}
        self.bos_token_id = tokenizer.bos_id
        # If no token ends a text, llguidance gets an id beyond the vocabulary.
        self.eos_token_id = min(tokenizer.stop_ids, default=None)
        self.special_token_ids = [
            i for i in range(tokenizer.n_vocab) if tokenizer.is_special(i) or i in tokenizer.stop_ids
        ]
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        special = set(self.special_token_ids)
        for i, data in enumerate(self.tokens):
            # 0xFF marks special tokens. It is not valid UTF-8, so a token that begins with it cannot be text.
            if i not in special and data.startswith(b"\xff"):
                self.tokens[i] = b""

    def __call__(self, text: str) -> list[int]:
        """Tokenize text forced by a grammar. If its tokens decode to a different text, use longest matches."""
        data = text.encode()
        if self._tokenizer.adds_space_prefix and text.startswith(" "):
            ids = self._tokenizer.encode(text[1:], add_special=False, parse_special=False)
        else:
            ids = self._tokenizer.encode(text, add_special=False, parse_special=False)
            if self._tokenizer.adds_space_prefix and ids and self.tokens[ids[0]] == b" ":
                ids = ids[1:]
        return ids if b"".join(self.tokens[i] for i in ids) == data else self._longest_match(data)

    def _longest_match(self, data: bytes) -> list[int]:
        if not self._ids:
            special = set(self.special_token_ids)
            self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in special}
            self._max_length = max(map(len, self._ids), default=0)
        ids, at = [], 0
        while at < len(data):
            lengths = range(min(self._max_length, len(data) - at), 0, -1)
            length = next((n for n in lengths if data[at : at + n] in self._ids), 0)
            if length == 0:
                raise RequestError(f"the grammar needs {data[at : at + 1]!r}, but the vocabulary has no token for it")
            ids.append(self._ids[data[at : at + length]])
            at += length
        return ids
