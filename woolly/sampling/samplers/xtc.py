"""XTC: exclude top choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.mt19937 import MersenneTwister
from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.params import SamplingParams


@sampler("xtc")
class Xtc:
    """With a given probability, excludes all tokens above a threshold except the least likely one."""

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self._probability = np.float32(probability)
        self._threshold = np.float32(threshold)
        self._min_keep = min_keep
        # Separate generator with the same seed as the draw.
        self._random = MersenneTwister(seed)

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> Xtc | None:
        """Return the sampler, or None if it is disabled."""
        return (
            cls(params.xtc_probability, params.xtc_threshold, params.min_keep, context.seed)
            if params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5
            else None
        )

    def apply(self, candidates: Candidates) -> None:
        """Exclude top choices with the configured probability."""
        if len(candidates) < 2 or self._random.uniform32() > self._probability:
            return
        candidates.sort()
        p = candidates.probabilities()
        # The candidates are sorted, so the first ones reach the threshold. An impossible token never does.
        last = int(np.count_nonzero((p >= self._threshold) & (p > 0.0))) - 1
        if last > 0 and len(candidates) - last >= self._min_keep:
            candidates.take(slice(last, None))
