"""Temperature, fixed or entropy-based."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.candidates import Candidates, log32
from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.params import SamplingParams


@sampler("temperature")
class Temperature:
    """Divides the logits by a temperature, which may depend on the entropy of the candidates."""

    def __init__(self, temperature: float, spread: float, exponent: float) -> None:
        self.temperature = np.float32(temperature)
        self._spread = np.float32(spread)
        self._exponent = float(np.float32(exponent))

    @property
    def is_fixed(self) -> bool:
        """True if the temperature does not depend on the entropy."""
        return bool(self._spread <= 0.0 and self.temperature > 0.0)

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> Temperature:
        """Return the sampler, which is always needed, even to divide by 1."""
        spread = 0.0 if params.mirostat else params.dynatemp_range
        return cls(params.temperature, spread, params.dynatemp_exponent)

    def apply(self, candidates: Candidates) -> None:
        """Divide the logits. With an entropy-based temperature, the candidates are sorted first."""
        if self._spread <= 0.0:
            self._divide(candidates, self.temperature)
        elif len(candidates) > 1:
            self._divide(candidates, self._follow_entropy(candidates))

    def _follow_entropy(self, candidates: Candidates) -> np.float32:
        candidates.sort()
        p = candidates.probabilities()
        p = p[p > 0.0]
        entropy = np.cumsum(-p * log32(p))[-1]
        highest = np.float32(-math.log(np.float32(1.0) / np.float32(len(candidates))))
        share = np.float32(math.pow(max(entropy / highest, 0.0), self._exponent))
        coolest = np.maximum(np.float32(0.0), self.temperature - self._spread)
        warmest = self.temperature + self._spread
        followed: np.float32 = coolest + (warmest - coolest) * share
        return followed

    @staticmethod
    def _divide(candidates: Candidates, temperature: np.float32) -> None:
        place = candidates.peak()
        if temperature > 0.0:
            logits = np.divide(candidates.logits, temperature, dtype=np.float32)
            if np.isfinite(logits[place]):
                candidates.replace(logits)
                return
        # With temperature 0, or one so low that float32 overflows, only the largest logit remains.
        logits = np.full_like(candidates.logits, -np.inf)
        logits[place] = candidates.logits[place]
        candidates.replace(logits)
