"""Min-p sampling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.candidates import Candidates, TooFewLogitsError
from woolly.sampling.registry import SamplerContext, sampler
from woolly.sampling.top_logits import MAX_TOP_LOGITS

if TYPE_CHECKING:
    from woolly.sampling.params import SamplingParams


@sampler("min_p")
class MinP:
    """Keeps tokens at least p times as likely as the most likely token."""

    keeps_likeliest = True
    n_top_logits = MAX_TOP_LOGITS

    def __init__(self, p: float, min_keep: int) -> None:
        self.log_p = np.float32(math.log(max(np.float32(p), np.float32(1e-45))))
        self.min_keep = min_keep

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> MinP | None:
        """Return the sampler, or None if it is disabled."""
        return cls(params.min_p, params.min_keep) if params.min_p > 0.0 else None

    def apply(self, candidates: Candidates) -> None:
        """Filter the candidates without changing their order, unless min_keep requires more."""
        place = candidates.peak()
        least = candidates.logits[place] + self.log_p
        keep = candidates.logits >= least
        n = int(np.count_nonzero(keep))
        if candidates.head is not None and n >= self.min_keep:
            if len(keep) < candidates.n_vocab and candidates.head.logits[-1] >= least:
                raise TooFewLogitsError
            candidates.keep_in_order(n)
        elif candidates.sorted or n < self.min_keep:
            candidates.keep_largest(max(n, self.min_keep))
        elif n < len(candidates):
            candidates.take(np.flatnonzero(keep))
