"""Sequence breakers: texts at which a repetition ends, as sequences of a vocabulary's tokens."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer

_MAX_TAIL_TOKENS = 20  # tokens; bounds the look back per token

Breakers = Mapping[int, Sequence[tuple[int, ...]]]

_MAX_KNOWN = 16  # sets of texts per vocabulary

_known: WeakKeyDictionary[Tokenizer, OrderedDict[tuple[str, ...], Breakers]] = WeakKeyDictionary()


def sequence_breakers(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """Return, by first token, the tails that complete a breaker; an empty tail if the token contains one.

    A token that ends with the beginning of a text needs the tokens of the rest as its tail. Scans the vocabulary
    once per set of texts (50 ms for 49,000 tokens) and keeps the latest sets.
    """
    known = _known.setdefault(tokenizer, OrderedDict())
    if texts not in known:
        known[texts] = _find(tokenizer, texts)
        while len(known) > _MAX_KNOWN:
            known.popitem(last=False)
    return known[texts]


def _find(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    wanted = [text.encode() for text in dict.fromkeys(texts)]
    tails: dict[bytes, dict[bytes, tuple[int, ...]]] = {}  # beginning of a text -> text -> tokens of its rest
    for text in wanted:
        for n in range(1, len(text)):
            tails.setdefault(text[:n], {})[text] = tuple(_encode(tokenizer, text[n:])[:_MAX_TAIL_TOKENS])
    longest = max(map(len, tails), default=0)
    is_inside = re.compile(b"|".join(map(re.escape, wanted))).search
    strip = tokenizer.adds_space_prefix
    found: dict[int, set[tuple[int, ...]]] = {}
    for token in range(tokenizer.n_vocab):
        word = tokenizer.render(token, strip, False)[0]
        inside = {text for text in wanted if text in word} if wanted and is_inside(word) else set()
        ends = [tails[word[-n:]] for n in range(1, min(longest, len(word)) + 1) if word[-n:] in tails]
        rests = {rest for by_text in ends for text, rest in by_text.items() if text not in inside}
        if inside:
            rests.add(())
        if rests:
            found[token] = rests
    return {token: sorted(rests) for token, rests in found.items()}


def _encode(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return tokenizer.encode(data.decode("utf-8", "replace"), add_special=False, parse_special=False)
