"""RWKV vocabularies (`rwkv`). Tokens are arbitrary bytes, encoded by greedy longest match."""

from __future__ import annotations

import re

from woolly.errors import TokenizerError
from woolly.tokens.vocabulary import TokenType, Vocabulary

_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(text: str) -> bytes:
    """Return the bytes of a token. The file escapes them with backslashes: \\n, \\t, \\r, \\xHH."""

    def byte(found: re.Match[bytes]) -> bytes:
        name = found[1]
        return bytes([int(name[1:], 16)]) if len(name) == 3 else _NAMED.get(name, name)

    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogateescape"))


class RwkvEncoder:
    """Greedy longest-match tokenizer, from left to right."""

    def __init__(self, vocabulary: Vocabulary, unknown: int | None) -> None:
        self._unknown = unknown
        self._ids: dict[bytes, int] = {}
        lengths: dict[int, set[int]] = {}
        for index, text in enumerate(vocabulary.tokens):
            data = unescaped(text)
            if vocabulary.types[index] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED) or not data:
                continue
            self._ids[data] = index
            lengths.setdefault(data[0], set()).add(len(data))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        data, at, out = text.encode(), 0, []
        while at < len(data):
            fits = (n for n in self._lengths.get(data[at], ()) if data[at : at + n] in self._ids)
            length = next(fits, 1)
            found = self._ids.get(data[at : at + length], self._unknown)
            if found is None:
                raise TokenizerError(f"the vocabulary has no token that begins with byte 0x{data[at]:02X}")
            out.append(found)
            at += length
        return out
