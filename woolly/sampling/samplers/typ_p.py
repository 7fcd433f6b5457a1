"""Locally typical sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.candidates import Candidates, log32
from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.params import SamplingParams


@sampler("typ_p")
class Typical:
    """Keeps the tokens whose surprise is closest to the entropy until they reach p (locally typical sampling)."""

    def __init__(self, p: float, min_keep: int) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> Typical | None:
        """Return the sampler, or None if it is disabled."""
        return cls(params.typical_p, params.min_keep) if params.typical_p < 1.0 else None

    def apply(self, candidates: Candidates) -> None:
        """Keep the most typical tokens, sorted by typicality."""
        candidates.sort()
        p = candidates.probabilities()
        possible = p > 0.0
        surprise = np.full_like(p, np.inf)
        surprise[possible] = -log32(p[possible])
        entropy = np.cumsum(p[possible] * surprise[possible])[-1]
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        n = int(np.searchsorted(np.cumsum(p[order]), self._p, side="right")) + 1
        candidates.take(order[: max(n, self._min_keep)])
        candidates.sorted = False
