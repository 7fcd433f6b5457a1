"""BPE merges for vocabularies without a merge list, whose tokens are in merge order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from woolly.errors import TokenizerError

_MAX_TOKEN_CHARS = 256  # maximum length of merged tokens; Whisper's longest has 128
_MAX_WORK = 1 << 24  # sum of squared token lengths; several times Whisper's


class _Encoder(Protocol):
    def encode(self, text: str, after_special: bool) -> list[int]: ...


class LazyBpeEncoder:
    """Lazily created encoder, because computing merges takes two seconds and few callers need it."""

    def __init__(self, make: Callable[[], _Encoder]) -> None:
        self._make = make
        self._made: _Encoder | None = None
        self._lock = threading.Lock()

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        with self._lock:
            self._made = self._made or self._make()
        return self._made.encode(text, after_special)


def merges_by_rank(tokens: Sequence[str]) -> list[str]:
    """Return the merges, each "left right", that form each token of two or more characters from two earlier tokens.

    Merging the characters of a token with the earlier merges yields its two halves. Tokens above the maximum length are
    skipped. Raises TokenizerError if the rest would take minutes.
    """
    if sum(len(token) ** 2 for token in tokens if len(token) <= _MAX_TOKEN_CHARS) > _MAX_WORK:
        raise TokenizerError("the vocabulary has no merges, and its tokens are too long to compute them")
    ranks = {token: rank for rank, token in enumerate(tokens)}
    known: dict[tuple[str, str], int] = {}  # rank of each known merge
    rules = []
    for rank, token in enumerate(tokens):
        parts = list(token) if len(token) <= _MAX_TOKEN_CHARS else []
        found = [known.get(pair, rank) for pair in pairwise(parts)]  # rank of each adjacent pair
        while len(parts) > 2:
            best = min(found)
            if best == rank:
                break  # no merge forms this token
            at = found.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del found[at]
            for changed in range(max(at - 1, 0), min(at + 1, len(found))):
                found[changed] = known.get((parts[changed], parts[changed + 1]), rank)
        if len(parts) == 2 and parts[0] in ranks and parts[1] in ranks:
            known[parts[0], parts[1]] = rank
            rules.append(f"{parts[0]} {parts[1]}")
    return rules
