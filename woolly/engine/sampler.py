"""The Sampler: one row of logits -> one token."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from woolly.engine.params import SamplingParams
from woolly.errors import ModelError

__all__ = ["Sampler"]


class Sampler:
    """Chooses the tokens of one sequence; its draws depend on the seed and the count of draws alone."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        # The same generator and seeding as std::mt19937, so that seeds mean the same as in llama.cpp.
        self._random = np.random.RandomState(self.seed)

    def choose(self, logits: npt.NDArray[np.float32]) -> int:
        """The next token. Ties go to the lowest id."""
        params = self._params
        best = int(np.argmax(logits))
        # argmax of a row with a NaN is that NaN, so one look finds every sick row but those of minus infinities.
        if not np.isfinite(logits[best]):
            raise ModelError("the model computed logits that are not finite; its file may be damaged")
        if params.temperature == 0.0:
            return best
        ids = self._shortlist(logits)
        scores = logits[ids].astype(np.float64)
        ids, scores = _nucleus(ids, scores, params.top_p)
        if params.min_p > 0.0:
            keep = scores >= scores[0] + np.log(params.min_p)
            ids, scores = ids[keep], scores[keep]
        weights = np.exp((scores - scores[0]) / params.temperature)
        total = np.cumsum(weights)
        index = int(np.searchsorted(total, self._uniform() * total[-1], side="left"))
        return int(ids[min(index, len(ids) - 1)])

    def _shortlist(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
        """Ids of the top_k, likeliest first, equal ones by id."""
        k = self._params.top_k
        if 0 < k < len(logits):
            # The k-th largest value, then all that reach it: argpartition alone would break ties at random.
            threshold = np.partition(logits, len(logits) - k)[len(logits) - k]
            ids = np.flatnonzero(logits >= threshold)
            return ids[np.argsort(-logits[ids], kind="stable")][:k]
        return np.argsort(-logits, kind="stable")

    def _uniform(self) -> float:
        """One double in [0, 1) of two 32-bit draws, the low half first."""
        low, high = (int(x) for x in self._random.randint(0, 2**32, size=2, dtype=np.uint32))
        return (low + high * 2**32) / 2**64


def _nucleus(
    ids: npt.NDArray[np.intp], scores: npt.NDArray[np.float64], top_p: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The shortest head of the sorted candidates whose probabilities reach top_p; at least one."""
    if top_p >= 1.0:
        return ids, scores
    weights = np.exp(scores - scores[0])
    reached = np.cumsum(weights) / weights.sum()
    n = min(int(np.searchsorted(reached, top_p, side="left")) + 1, len(ids))
    return ids[:n], scores[:n]
