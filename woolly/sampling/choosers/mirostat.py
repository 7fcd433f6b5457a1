"""Mirostat, which replaces the sampler chain and the random choice."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from woolly._native import logs
from woolly.sampling.candidates import Candidates, log32
from woolly.sampling.choosers.draw import first_possible
from woolly.sampling.mt19937 import MersenneTwister

_HEAD = 100  # top tokens from which version 1 estimates the slope


class Mirostat:
    """Keeps the surprise of chosen tokens near tau bits by excluding tokens with a surprise above mu."""

    def __init__(self, version: int, tau: float, eta: float, seed: int) -> None:
        self._version = version
        self._tau = np.float32(tau)
        self._eta = np.float32(eta)
        self._mu = np.float32(2.0) * self._tau
        self._random = MersenneTwister(seed)

    def choose(self, candidates: Candidates) -> int:
        """Sort, truncate, draw, and adjust mu by the surprise of the drawn token."""
        candidates.sort()
        p = candidates.probabilities()
        p = p[p > 0.0]
        candidates.keep_largest(
            max(self._by_steepness(p, candidates.n_vocab) if self._version == 1 else self._by_surprise(p), 1)
        )
        p = candidates.probabilities()
        place = first_possible(candidates, self._draw(p))
        surprise = np.float32(-math.log2(p[place]))
        self._mu -= self._eta * (surprise - self._tau)
        return candidates.id(place)

    def _by_surprise(self, p: npt.NDArray[np.float32]) -> int:
        bits = np.empty(len(p), np.float32)
        logs(np.ascontiguousarray(p), bits, base_2=True)
        surprising = -bits > self._mu
        return int(np.argmax(surprising)) if surprising.any() else len(p)

    def _by_steepness(self, p: npt.NDArray[np.float32], n_vocab: int) -> int:
        """Return the k at which a Zipf distribution with the slope of the top tokens has surprise mu."""
        head = p[:_HEAD]
        if len(head) < 2:
            return 1
        rank = np.arange(1, len(head), dtype=np.float32)
        t = log32((rank + np.float32(1.0)) / rank)
        b = log32(head[:-1] / head[1:])
        with np.errstate(all="ignore"):
            s = np.cumsum(t * b)[-1] / np.cumsum(t * t)[-1]
            epsilon = s - np.float32(1.0)
            numerator = epsilon * np.float32(2.0) ** self._mu
            k = (numerator / (np.float32(1.0) - np.float32(n_vocab) ** -epsilon)) ** (np.float32(1.0) / s)
        # A flat distribution has no slope: keep one token or all.
        return 1 if np.isnan(k) else int(min(float(k), n_vocab))

    def _draw(self, p: npt.NDArray[np.float32]) -> int:
        """Draw like std::discrete_distribution, which uses no random number for a single candidate."""
        if len(p) < 2:
            return 0
        weights = p.astype(np.float64)
        sums = np.cumsum(weights / np.cumsum(weights)[-1])
        sums[-1] = 1.0
        return int(np.searchsorted(sums, self._random.uniform64(), side="left"))
