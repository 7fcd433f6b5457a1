"""Byte-pair vocabularies (`gpt2`, `gemma4`, `whitespace`) on Hugging Face `tokenizers`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import tokenizers
from tokenizers import models, pre_tokenizers

from woolly.errors import TokenizerError
from woolly.tokens.pretokenize import Pretokenizer
from woolly.tokens.vocabulary import SPACE_MARK, Vocabulary

__all__ = ["BYTE_OF_CHARACTER", "BytePairEncoder"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_NEWLINES = re.compile(r"(\n+)")
_PART = 100_000  # characters that are encoded at once
_LONGEST_PART = 2_000_000  # the regex engine gives up on a word of ten million characters
_MISSING = "\ufdd0missing"  # replaces a character without a token; U+FDD0 is never a character


def _byte_characters() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]


_CHARACTER_OF_BYTE = _byte_characters()

# Byte-level vocabularies write each byte as one printable character.
BYTE_OF_CHARACTER: dict[str, int] = {character: byte for byte, character in enumerate(_CHARACTER_OF_BYTE)}

# C0, C1 and F5 to FF never occur in UTF-8.
_BYTES_OF_TEXT = [*range(0xC0), *range(0xC2, 0xF5)]


class BytePairEncoder:
    """Splits a text into words and merges the characters of each word, lowest rank first."""

    def __init__(self, vocabulary: Vocabulary, pre: Pretokenizer, unknown: int | None, lowercase: bool = False) -> None:
        self._pre = pre
        self._cut = re.compile(pre.cut) if pre.cut else None
        self._lowercase = lowercase
        self._unknown = unknown
        self._ids = vocabulary.ids
        self._n_tokens = len(vocabulary.tokens)
        self._extra: list[str] = []  # texts of ids from n_tokens on: not tokens of the model
        self._model = self._build(vocabulary)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Returns the ids of a text without special tokens."""
        if self._lowercase:
            text = text.lower()
        if self._pre.escape_spaces:
            text = text.replace(" ", SPACE_MARK)
        if not self._pre.whole_newlines:
            return self._encode(text)
        out: list[int] = []
        for part in _NEWLINES.split(text):
            if part.startswith("\n") and part in self._ids:
                out.append(self._ids[part])
            elif part:
                out += self._encode(part)
        return out

    def _encode(self, text: str) -> list[int]:
        out: list[int] = []
        begin = 0
        for end in [*self._cuts(text), len(text)]:
            part = text if end - begin == len(text) else text[begin:end]
            out += self._model.encode(part, add_special_tokens=False).ids
            begin = end
        if self._extra and max(out, default=0) >= self._n_tokens:
            return self._replace_extra(out)
        return out

    def _cuts(self, text: str) -> Iterator[int]:
        """Yields where to split a long text: encoding takes about 200 bytes of memory per character."""
        begin = 0
        while len(text) - begin > _PART:
            found = self._cut.search(text, begin + _PART) if self._cut is not None else None
            end = len(text) if found is None else found.end()
            if end - begin > _LONGEST_PART:
                raise TokenizerError(
                    f"the text has more than {_LONGEST_PART:,} characters without a place to cut it at, "
                    "which is a letter before a space or before the end of a line"
                )
            if found is None:
                return
            yield end
            begin = end

    def _build(self, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
        ids = _encodable(vocabulary.ids)
        merges = _split_merges(vocabulary.merges())
        characters = (_CHARACTER_OF_BYTE[byte] for byte in _BYTES_OF_TEXT)
        complete = self._pre.byte_level and all(character in ids for character in characters)
        if not complete:
            ids = self._with_extra(ids, [_MISSING])
        unk = None if complete else _MISSING
        try:
            model = self._make_model(ids, merges, unk)
        except Exception:  # tokenizers raises a bare Exception if a merge names a text that is not a token
            # A later merge may still make a token of it, so the merge is kept.
            steps = dict.fromkeys(text for a, b in merges for text in (a, b, a + b) if text not in ids)
            model = self._make_model(self._with_extra(ids, list(steps)), merges, unk)
        tokenizer = tokenizers.Tokenizer(model)
        behavior = "removed" if self._pre.drop_spaces else "isolated"
        steps_before: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior) for pattern in self._pre.patterns
        ]
        if self._pre.byte_level:
            steps_before.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps_before)
        return tokenizer

    def _make_model(self, ids: dict[str, int], merges: list[tuple[str, str]], unk: str | None) -> models.BPE:
        return models.BPE(
            ids,
            merges,
            unk_token=unk,
            byte_fallback=not self._pre.byte_level,
            ignore_merges=self._pre.ignore_merges,
        )

    def _with_extra(self, ids: dict[str, int], texts: Sequence[str]) -> dict[str, int]:
        first = self._n_tokens + len(self._extra)
        self._extra += texts
        return ids | {text: first + i for i, text in enumerate(texts)}

    def _replace_extra(self, ids: list[int]) -> list[int]:
        out: list[int] = []
        for index in ids:
            if index < self._n_tokens:
                out.append(index)
                continue
            text = self._extra[index - self._n_tokens]
            for character in [text] if text == _MISSING else text:
                known = self._ids.get(character, self._unknown)
                if known is None:
                    raise TokenizerError(
                        "the text holds a character for which this vocabulary has no token and no unknown token"
                    )
                out.append(known)
        return out


def _split_merges(merges: list[str]) -> list[tuple[str, str]]:
    if len(set(merges)) < len(merges):
        merges = list(dict.fromkeys(merges))  # the first of equals sets the rank
    merges = _encodable(merges)
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    lines = "\n" + "\n".join(merges) + "\n"  # three fast checks of all merges for what the fast split gets wrong
    if set(map(len, pairs)) - {2} or "\n " in lines or " \n" in lines:
        pairs = [_split_merge(merge) for merge in merges]
    return pairs  # type: ignore[return-value]  # each has two parts


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # the left piece may start with a space itself
    if not right:
        raise TokenizerError(f"tokenizer.ggml.merges holds {merge!r}, which is not two pieces with a space between")
    return merge[0] + left, right


_T = TypeVar("_T", dict[str, int], list[str])


def _encodable(texts: _T) -> _T:
    """Drops texts that are not UTF-8: no input can contain them."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        if isinstance(texts, dict):
            return {text: i for text, i in texts.items() if not _SURROGATE.search(text)}
        return [text for text in texts if not _SURROGATE.search(text)]
    return texts
