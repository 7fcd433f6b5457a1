"""Output rows of a step for sampling: full logits, or the top logits of each row."""

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

_MANY = 8  # maximum number of tokens to search for one by one


class Rows(Protocol):
    """Output rows of a step, which the next step overwrites."""

    def whole(self, first: int, last: int) -> Float32:
        """Return the full logits of rows `first` to `last`, float32 [last - first, n_vocab]."""

    def row(self, i: int) -> Row:
        """Return row i for a sampler."""

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Sample a batch: sampler i from row i, which must be the next row of this sampler."""


class WholeRows:
    """Logits of the complete vocabulary."""

    def __init__(self, logits: Float32) -> None:
        self._logits = logits

    def whole(self, first: int, last: int) -> Float32:
        """Return a view of the logits."""
        return self._logits[first:last]

    def row(self, i: int) -> Row:
        """Return a view of the logits."""
        row: Float32 = self._logits[i]
        return row

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Do nothing, because full rows are sampled one by one."""


class RankedRows:
    """Top logits of each row. The other logits stay on the device until requested."""

    def __init__(self, ranking: Ranking, n_vocab: int) -> None:
        self._ranking = ranking
        self._n_vocab = n_vocab
        self._sums = ranking.sums.tolist()
        self._is_sound = ranking.is_sound.tolist()
        self._tokens: list[int | None] = [None] * len(self._sums)

    def whole(self, first: int, last: int) -> Float32:
        """Return a copy of the program's logits."""
        return self._ranking.rows(first, last)

    def row(self, i: int) -> Row:
        """Return the sampled token if there is one, otherwise the top logits."""
        if (token := self._tokens[i]) is not None:
            return token
        ids, logits = self._ranking.ids[i], self._ranking.logits[i]
        return TopLogits(ids, logits, self._n_vocab, self._sums[i], self._is_sound[i], partial(self._whole, i))

    def choose(self, samplers: Sequence[Sampler | None]) -> None:
        """Sample from all rows in one vectorized pass."""
        ids, is_sound = self._ranking.ids, self._is_sound
        lowered = frozenset().union(*(sampler.lowered for sampler in samplers if sampler is not None))
        # Most rows have none of these tokens. Compare all rows with each token, unless there are many tokens.
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
