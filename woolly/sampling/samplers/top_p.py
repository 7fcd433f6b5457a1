"""Top-p (nucleus) sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly._native import weigh
from woolly.sampling.candidates import Candidates, TooFewLogitsError
from woolly.sampling.registry import SamplerContext, sampler
from woolly.sampling.top_logits import MAX_TOP_LOGITS, TopLogits

if TYPE_CHECKING:
    from woolly.sampling.params import SamplingParams

_FIRST_LOOK = 256  # number of top tokens that usually reaches top_p, to avoid sorting all tokens
_HALF = 2.0**-24  # maximum relative rounding error of float32


@sampler("top_p")
class TopP:
    """Keeps the most likely tokens until their total probability reaches p."""

    keeps_likeliest = True
    n_top_logits = MAX_TOP_LOGITS

    def __init__(self, p: float, min_keep: int) -> None:
        self.p = np.float32(p)
        self.min_keep = min_keep

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> TopP | None:
        """Return the sampler, or None if it is disabled."""
        return cls(params.top_p, params.min_keep) if params.top_p < 1.0 else None

    def apply(self, candidates: Candidates) -> None:
        """Keep the top tokens, sorting only as many as needed."""
        if candidates.head is not None:
            if candidates.logits is not candidates.head.logits or not candidates.is_sum_known:
                raise TooFewLogitsError  # the sum of the complete row has changed
            candidates.keep_largest(self._of_top_logits(candidates.head))
            return
        if candidates.sorted:
            candidates.keep_largest(self._head(np.cumsum(candidates.probabilities())))
            return
        total = candidates.total()
        whole = len(candidates)
        for n in (_FIRST_LOOK, whole) if whole > 4 * _FIRST_LOOK else (whole,):
            places, head = candidates.ranked(n)
            weights = np.empty_like(head)
            weigh(head, float(head[0]), weights)
            weights /= total
            reached = np.cumsum(weights)
            if n == whole or (reached[-1] >= self.p and self.min_keep <= n):
                break
        candidates.take(places[: self._head(reached)])
        candidates.sorted = True

    def _of_top_logits(self, head: TopLogits) -> int:
        """Return the number of tokens to keep, if the unknown float32 sum of the row leaves no doubt.

        Each addition has an error of at most the added value, and at most half a unit in the last place. The rounding
        error of the weights is far less than 64 such units.
        """
        weights = np.empty_like(head.logits)
        weigh(head.logits, float(head.logits[0]), weights)
        outside = max(0.0, head.total - float(weights.sum(dtype=np.float64)))
        n_outside = head.n_vocab - len(weights)
        doubt = min(outside, n_outside * _HALF * head.total) + (len(weights) + 64) * _HALF * head.total
        least, most = (
            self._head(np.cumsum(weights / np.float32(total))) for total in (head.total - doubt, head.total + doubt)
        )
        if least != most:
            raise TooFewLogitsError
        return least

    def _head(self, reached: npt.NDArray[np.float32]) -> int:
        return max(int(np.searchsorted(reached, self.p, side="left")) + 1, self.min_keep)
