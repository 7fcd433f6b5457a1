"""Random choice by weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.mt19937 import MersenneTwister

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates


class Draw:
    """Takes the first candidate at which the sum of the weights reaches u times their total."""

    def __init__(self, seed: int) -> None:
        self.random = MersenneTwister(seed)

    def choose(self, candidates: Candidates) -> int:
        """Uses exactly one u per token, even if only one candidate is left."""
        return candidates.id(first_possible(candidates, candidates.draw(self.random.uniform64())))


def first_possible(candidates: Candidates, place: int) -> int:
    """The place drawn; the likeliest one if u was 0 and the first candidate is ruled out."""
    return place if candidates.logits[place] > -np.inf else candidates.peak()
