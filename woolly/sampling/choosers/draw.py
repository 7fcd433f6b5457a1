"""Draw: random choice by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.mt19937 import MersenneTwister

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates


class Draw:
    """Chooses the first candidate at which the cumulative weight reaches u times the total."""

    def __init__(self, seed: int) -> None:
        self.random = MersenneTwister(seed)

    def choose(self, candidates: Candidates) -> int:
        """Choose a candidate. Each call uses exactly one random number, even with a single candidate."""
        return candidates.id(first_possible(candidates, candidates.draw(self.random.uniform64())))


def first_possible(candidates: Candidates, place: int) -> int:
    """Return the drawn index, or the most likely one if u is 0 and the first candidate is banned."""
    return place if candidates.logits[place] > -np.inf else candidates.peak()
