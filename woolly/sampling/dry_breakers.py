"""Sequence breakers: texts at which a repetition ends, as sequences of a vocabulary's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer

_MAX_TAIL_TOKENS = 20  # tokens; bounds the look back per token

Breakers = Mapping[int, Sequence[tuple[int, ...]]]

_known: WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Breakers]] = WeakKeyDictionary()


def sequence_breakers(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """First token -> tails that make a breaker of it; the empty tail if the token contains a whole text.

    A token that ends with the beginning of a text needs the rest of it as its tail. Scans the whole vocabulary
    (about 50 ms), once for each set of texts.
    """
    known = _known.setdefault(tokenizer, {})
    if texts not in known:
        known[texts] = _find(tokenizer, texts)
    return known[texts]


def _find(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    strip = tokenizer.adds_space_prefix
    words = [tokenizer.render(token, strip, False)[0] for token in range(tokenizer.n_vocab)]
    found: dict[int, set[tuple[int, ...]]] = {}
    for text in texts:
        data = text.encode()
        tails = {
            data[:n]: tuple(_encode(tokenizer, data[n:])[:_MAX_TAIL_TOKENS]) for n in range(1, len(data))
        }  # beginning of the text -> tokens of the rest
        for token, word in enumerate(words):
            if data in word:
                found.setdefault(token, set()).add(())
                continue
            for beginning, tail in tails.items():
                if word.endswith(beginning):
                    found.setdefault(token, set()).add(tail)
    return {token: sorted(tails) for token, tails in found.items()}


def _encode(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return tokenizer.encode(data.decode("utf-8", "replace"), add_special=False, parse_special=False)
