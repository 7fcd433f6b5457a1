"""Byte-pair vocabularies (`gpt2`, `gemma4`, `whitespace`). Hugging Face `tokenizers` splits words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import pre_tokenizers

from woolly import _native
from woolly.errors import TokenizerError
from woolly.gguf.byte_level import CHARACTER_OF_BYTE
from woolly.tokens.vocabulary import SPACE_MARK, Vocabulary

if TYPE_CHECKING:
    from woolly.tokens.pretokenize import Pretokenizer

_NEWLINES = re.compile(r"(\n+)")
_PART = 100_000  # maximum characters per chunk
_MAX_PART_CHARS = 2_000_000  # the regex engine fails on a word of ten million characters


# Byte-level vocabularies represent each byte as one printable character.
BYTE_OF_CHARACTER: dict[str, int] = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)}


class BytePairEncoder:
    """Splits text into words, and merges the characters of each word in order of rank."""

    def __init__(self, vocabulary: Vocabulary, pre: Pretokenizer, unknown: int | None, lowercase: bool = False) -> None:
        self._pre = pre
        self._cut = re.compile(pre.cut) if pre.cut else None
        self._lowercase = lowercase
        self._map = vocabulary.map
        behavior = "removed" if pre.drop_spaces else "isolated"
        self._words = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior) for pattern in pre.patterns]
        )
        characters = _native.Texts([character.encode() for character in CHARACTER_OF_BYTE])
        merges, number = vocabulary.merges(), -1 if unknown is None else unknown
        try:
            self._model = _native.BytePairs(self._map, merges, characters, pre.byte_level, pre.ignore_merges, number)
        except ValueError as error:
            merge = merges[int(str(error))].decode("utf-8", "surrogateescape")
            raise TokenizerError(
                f"tokenizer.ggml.merges has {merge!r}; expected two pieces separated by a space"
            ) from None

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        if self._lowercase:
            text = text.lower()
        if self._pre.escape_spaces:
            text = text.replace(" ", SPACE_MARK)
        if not self._pre.whole_newlines:
            return self._encode(text)
        out: list[int] = []
        for part in _NEWLINES.split(text):
            if part.startswith("\n") and (index := self._map.find(part.encode())) >= 0:
                out.append(index)
            elif part:
                out += self._encode(part)
        return out

    def _encode(self, text: str) -> list[int]:
        out: list[int] = []
        begin = 0
        for end in [*self._cuts(text), len(text)]:
            part = text if end - begin == len(text) else text[begin:end]
            try:
                out += self._model.encode([word for word, _ in self._words.pre_tokenize_str(part)])
            except IndexError:
                raise TokenizerError(
                    "the text has a character without a token, and the vocabulary has no unknown token"
                ) from None
            begin = end
        return out

    def _cuts(self, text: str) -> Iterator[int]:
        """Yield split positions of a long text, because encoding takes about 200 bytes of memory per character."""
        begin = 0
        while len(text) - begin > _PART:
            found = self._cut.search(text, begin + _PART) if self._cut is not None else None
            end = len(text) if found is None else found.end()
            if end - begin > _MAX_PART_CHARS:
                raise TokenizerError(
                    f"the text has more than {_MAX_PART_CHARS:,} characters without a place to split it (a letter"
                    " before a space or the end of a line)"
                )
            if found is None:
                return
            yield end
            begin = end
