"""The Rows that a step leaves for the choice of tokens: whole rows of logits, or the largest of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from woolly.sampling.fast_chain import choose_batch
from woolly.sampling.top_logits import Row, TopLogits

if TYPE_CHECKING:
    from woolly.runtime import Ranking
    from woolly.sampling.sampler import Sampler

Float32 = npt.NDArray[np.float32]

_MANY = 8  # tokens that are looked for one by one in all rows at once


class Rows(Protocol):
    """The rows of output of one step. They are overwritten by the next."""

    def whole(self, first: int, last: int) -> Float32:
        """Logits of some rows, [last - first, n_vocab]."""

    def row(self, i: int) -> Row:
        """One of them, as samplers take it."""

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Lets samplers choose together, each from the row of its place, which it must take next."""


class WholeRows:
    """Logits of the whole vocabulary."""

    def __init__(self, logits: Float32) -> None:
        self._logits = logits

    def whole(self, first: int, last: int) -> Float32:
        """A view."""
        return self._logits[first:last]

    def row(self, i: int) -> Row:
        """A view."""
        row: Float32 = self._logits[i]
        return row

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Nothing: each sampler takes its time over a whole row."""


class RankedRows:
    """The largest logits of each row. The others stay where they were computed until someone asks for them."""

    def __init__(self, ranking: Ranking, n_vocab: int) -> None:
        self._ranking = ranking
        self._n_vocab = n_vocab
        self._sums = ranking.sums.tolist()
        self._is_sound = ranking.is_sound.tolist()
        self._tokens: list[int | None] = [None] * len(self._sums)

    def whole(self, first: int, last: int) -> Float32:
        """A copy of what the program has."""
        return self._ranking.rows(first, last)

    def row(self, i: int) -> Row:
        """A token if it is chosen, else a head."""
        if (token := self._tokens[i]) is not None:
            return token
        ids, logits = self._ranking.ids[i], self._ranking.logits[i]
        return TopLogits(ids, logits, self._n_vocab, self._sums[i], self._is_sound[i], partial(self._whole, i))

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Chooses for several rows in the time of a few."""
        ids, is_sound = self._ranking.ids, self._is_sound
        lowered = frozenset().union(*(sampler.lowered for sampler in samplers if sampler is not None))
        # Most rows have none of these tokens: one look at all rows finds out, unless there are many.
        is_lowered = [len(lowered) > _MANY] * len(samplers)
        if 0 < len(lowered) <= _MANY:
            is_lowered = np.logical_or.reduce([(ids == token).any(axis=1) for token in lowered]).tolist()
        chains = [
            None if sampler is None or not is_sound[i] else sampler.chooses_alike(ids[i], is_lowered[i])
            for i, sampler in enumerate(samplers)
        ]
        self._tokens = choose_batch(chains, ids, self._ranking.logits, ids.shape[1] == self._n_vocab)

    def _whole(self, i: int) -> Float32:
        row: Float32 = self._ranking.rows(i, i + 1)[0]
        return row
