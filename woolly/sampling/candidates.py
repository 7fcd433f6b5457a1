"""Candidates: token ids and logits to sample from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly._native import draw, largest, logs, weigh

if TYPE_CHECKING:
    from woolly.sampling.top_logits import TopLogits


class NoCandidateError(Exception):
    """Row without a valid token: NaN, plus infinity, or only minus infinities. Always handled by Sampler."""


class TooFewLogitsError(Exception):
    """Sampler step that needs tokens outside of the top logits. Always handled by Sampler."""


def log32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the logarithm of positive values, rounded to float32 once."""
    out = np.empty(len(values), np.float32)
    logs(np.ascontiguousarray(values), out)
    return out


class Candidates:
    """Ids and logits in drawing order: by id, until a sampler sorts them.

    Arithmetic is float32 and sums run from first to last, as in llama.cpp, so equal logits and seeds give equal tokens.
    """

    def __init__(self, row: npt.NDArray[np.float32], *, owned: bool = False) -> None:
        """Create candidates from a complete row. Unless `owned`, the row is copied before it is modified."""
        self.ids: npt.NDArray[np.int32] | None = None  # None for the complete vocabulary, ids 0, 1, 2 ...
        self.logits = row
        self.n_vocab = len(row)
        self.sorted = False  # in descending order of logits
        self._owned = owned
        # Top logits of these candidates, until a sampler reduces them to the top logits alone. Logits may only be
        # lowered.
        self.head: TopLogits | None = None
        self.is_sum_known = (
            True  # `TopLogits.total` is valid for the complete row, including edits outside of the top logits
        )

    @classmethod
    def of_top_logits(cls, head: TopLogits) -> Candidates:
        """Return candidates of the complete vocabulary with only the top logits known."""
        self = cls(head.logits)
        self.ids, self.n_vocab, self.head = head.ids, head.n_vocab, head
        return self

    def __len__(self) -> int:
        return len(self.logits)

    def id(self, index: int) -> int:
        """Return the token at an index."""
        return index if self.ids is None else int(self.ids[index])

    def editable(self) -> npt.NDArray[np.float32]:
        """Return the logits for modification; they no longer count as sorted."""
        if not self._owned:
            self.logits, self._owned = self.logits.copy(), True
        self.sorted = False
        return self.logits

    def replace(self, logits: npt.NDArray[np.float32]) -> None:
        """Replace the logits without changing their order."""
        self.logits, self._owned = logits, True

    def take(self, places: slice | npt.NDArray[np.integer]) -> None:
        """Keep the tokens at these indices, in this order."""
        if self.ids is not None:
            self.ids = self.ids[places]
        elif isinstance(places, slice):
            self.ids = np.arange(len(self.logits), dtype=np.int32)[places]
        else:
            self.ids = places.astype(np.int32)
        self.logits = self.logits[places]
        self._owned = self._owned or not isinstance(places, slice)

    def ranked(self, n: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return indices and logits of the n largest, in descending order; ties keep their order."""
        n = min(n, len(self.logits))
        places, values = np.empty(n, np.int32), np.empty(n, np.float32)
        if not largest(self.logits, places, values):
            raise NoCandidateError
        return places, values

    def n_certain(self) -> int:
        """Sort the top logits; return how many are certain to be the largest of the vocabulary."""
        assert self.head is not None and self.ids is not None
        if self.logits is self.head.logits:
            n = len(self.logits)
        else:
            order = np.lexsort((self.ids, -self.logits))
            self.ids, self.logits = self.ids[order], self.logits[order]
            # No token outside can exceed the last top logit, as it was before logits were lowered.
            last, id = self.head.logits[-1], self.head.ids[-1]
            n = int(np.count_nonzero((self.logits > last) | ((self.logits == last) & (self.ids <= id))))
        n = len(self.logits) if len(self.logits) == self.n_vocab else n
        if n and self.logits[0] == -np.inf:
            raise NoCandidateError
        return n

    def keep_largest(self, n: int) -> None:
        """Sort and keep the first n."""
        if self.head is not None:
            if min(n, self.n_vocab) > self.n_certain():
                raise TooFewLogitsError
            self.head = None
            self.take(slice(n))
            self.sorted = True
        elif not self.sorted:
            places, values = self.ranked(n)
            self.ids = places if self.ids is None else self.ids[places]
            self.logits, self.sorted, self._owned = values, True, True
        elif n < len(self.logits):
            self.take(slice(n))

    def keep_in_order(self, n: int) -> None:
        """Keep the n largest of the top logits, sorted by id like the complete vocabulary."""
        self.keep_largest(n)
        assert self.ids is not None
        self.take(np.argsort(self.ids))
        self.sorted = False

    def sort(self) -> None:
        """Sort in descending order of logits."""
        self.keep_largest(len(self.logits))

    def peak(self) -> int:
        """Return the index of the largest logit, the first of ties."""
        if self.head is not None and self.n_certain() == 0:
            raise TooFewLogitsError
        if self.sorted or self.head is not None:
            return 0
        place = int(self.logits.argmax())
        # The argmax of a row with a NaN is the NaN, so this check finds every invalid row.
        if not np.isfinite(self.logits[place]):
            raise NoCandidateError
        return place

    def top(self) -> float:
        """Return the largest logit."""
        place = self.peak()  # before reading the logits, which it may sort
        return float(self.logits[place])

    def probabilities(self) -> npt.NDArray[np.float32]:
        """Return the softmax of the logits."""
        weights = np.empty_like(self.logits)
        weights /= np.float32(weigh(self.logits, self.top(), weights))
        return weights

    def total(self) -> np.float32:
        """Return the sum of exp(logit - largest logit)."""
        total: np.float32 = np.float32(weigh(self.logits, self.top(), np.empty_like(self.logits)))
        return total

    def draw(self, u: float) -> int:
        """Return the first index at which the cumulative weight reaches u times the total."""
        return draw(self.logits, self.top(), u)
