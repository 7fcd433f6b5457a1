"""Sequence breakers of DRY: strings that end a repetition, as token sequences."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer

_MAX_TAIL_TOKENS = 20  # limits the look-ahead per token

Breakers = Mapping[int, Sequence[tuple[int, ...]]]

_MAX_KNOWN = 16  # cached sets of strings per vocabulary

_known: WeakKeyDictionary[Tokenizer, OrderedDict[tuple[str, ...], Breakers]] = WeakKeyDictionary()


def sequence_breakers(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """Map each first token to the tails that complete a breaker; the tail is empty if the token contains a breaker.

    If a token ends with the beginning of a breaker, the tail has the tokens of the rest. Results are cached, because
    scanning the vocabulary takes 50 ms for 49,000 tokens.
    """
    known = _known.setdefault(tokenizer, OrderedDict())
    if texts not in known:
        known[texts] = _find(tokenizer, texts)
        while len(known) > _MAX_KNOWN:
            known.popitem(last=False)
    return known[texts]


def _find(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    wanted = [text.encode() for text in dict.fromkeys(texts)]
    tails: dict[bytes, dict[bytes, tuple[int, ...]]] = {}  # beginning of a breaker -> breaker -> tokens of the rest
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
