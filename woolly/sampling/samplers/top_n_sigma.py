"""Top-n-sigma sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.params import SamplingParams


@sampler("top_n_sigma")
class TopNSigma:
    """Bans tokens whose logit is more than n standard deviations below the largest."""

    keeps_likeliest = True

    def __init__(self, n: float) -> None:
        self._n = np.float32(n)

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> TopNSigma | None:
        """Return the sampler, or None if it is disabled."""
        return cls(params.top_n_sigma) if params.top_n_sigma > 0.0 else None

    def apply(self, candidates: Candidates) -> None:
        """Set logits to minus infinity. Logits that already are do not count for the deviation."""
        if len(candidates) < 2:
            return
        logits = candidates.logits
        top = logits[candidates.peak()]
        finite = logits[np.isfinite(logits)]
        n = np.float32(len(finite))
        deviation = finite - np.cumsum(finite)[-1] / n
        sigma = np.sqrt(np.cumsum(deviation * deviation)[-1] / n)
        candidates.replace(np.where(logits < top - self._n * sigma, np.float32(-np.inf), logits))
