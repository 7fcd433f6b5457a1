"""Filters: the samplers that narrow or reshape the candidates. Each works as its paper and llama.cpp say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from woolly._native import weigh
from woolly.engine.candidates import Candidates, log32
from woolly.engine.mersenne import MersenneTwister

__all__ = ["MinP", "Temperature", "TopK", "TopNSigma", "TopP", "Typical", "Xtc"]

_FIRST_LOOK = 256  # likeliest tokens that mostly reach top_p, found without sorting them all


@dataclass(frozen=True)
class TopK:
    """Keeps the k likeliest."""

    k: int

    def apply(self, candidates: Candidates) -> None:
        """Sorts, and cuts."""
        candidates.keep_largest(self.k)


class TopP:
    """Keeps the shortest head of the sorted candidates whose probabilities reach p (nucleus sampling)."""

    def __init__(self, p: float, min_keep: int) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep

    def apply(self, candidates: Candidates) -> None:
        """Sorts no more than the head where that is enough."""
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
            if n == whole or (reached[-1] >= self._p and self._min_keep <= n):
                break
        candidates.take(places[: self._head(reached)])
        candidates.sorted = True

    def _head(self, reached: npt.NDArray[np.float32]) -> int:
        return max(int(np.searchsorted(reached, self._p, side="left")) + 1, self._min_keep)


class MinP:
    """Keeps what is at least p times as likely as the likeliest."""

    def __init__(self, p: float, min_keep: int) -> None:
        self._log_p = np.float32(math.log(max(np.float32(p), np.float32(1e-45))))
        self._min_keep = min_keep

    def apply(self, candidates: Candidates) -> None:
        """Leaves the order as it is, unless min_keep asks for more than pass."""
        keep = candidates.logits >= candidates.logits[candidates.peak()] + self._log_p
        n = int(np.count_nonzero(keep))
        if candidates.sorted or n < self._min_keep:
            candidates.keep_largest(max(n, self._min_keep))
        elif n < len(candidates):
            candidates.take(np.flatnonzero(keep))


class Typical:
    """Keeps the tokens whose surprise is closest to the entropy, until they reach p (locally typical sampling)."""

    def __init__(self, p: float, min_keep: int) -> None:
        self._p = np.float32(p)
        self._min_keep = min_keep

    def apply(self, candidates: Candidates) -> None:
        """Leaves the most typical first."""
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


class TopNSigma:
    """Rules out what lies more than n standard deviations of the logits below the largest."""

    def __init__(self, n: float) -> None:
        self._n = np.float32(n)

    def apply(self, candidates: Candidates) -> None:
        """Only lowers logits to minus infinity; those that already are do not count for the deviation."""
        if len(candidates) < 2:
            return
        logits = candidates.logits
        top = logits[candidates.peak()]
        finite = logits[np.isfinite(logits)]
        n = np.float32(len(finite))
        deviation = finite - np.cumsum(finite)[-1] / n
        sigma = np.sqrt(np.cumsum(deviation * deviation)[-1] / n)
        candidates.replace(np.where(logits < top - self._n * sigma, np.float32(-np.inf), logits))


class Xtc:
    """Now and then drops all but the last of the tokens that are likelier than a threshold (exclude top choices)."""

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self._probability = np.float32(probability)
        self._threshold = np.float32(threshold)
        self._min_keep = min_keep
        # Its own generator, of the same seed as the draw.
        self._random = MersenneTwister(seed)

    def apply(self, candidates: Candidates) -> None:
        """Draws whether to act at all."""
        if len(candidates) < 2 or self._random.uniform32() > self._probability:
            return
        candidates.sort()
        p = candidates.probabilities()
        # Sorted, so those that reach the threshold are the first. An impossible token never does.
        last = int(np.count_nonzero((p >= self._threshold) & (p > 0.0))) - 1
        if last > 0 and len(candidates) - last >= self._min_keep:
            candidates.take(slice(last, None))


class Temperature:
    """Divides the logits by the temperature, or by one that follows the entropy of the candidates."""

    def __init__(self, temperature: float, spread: float, exponent: float) -> None:
        self._temperature = np.float32(temperature)
        self._spread = np.float32(spread)
        self._exponent = float(np.float32(exponent))

    def apply(self, candidates: Candidates) -> None:
        """With a spread, sorts first."""
        if self._spread <= 0.0:
            self._divide(candidates, self._temperature)
        elif len(candidates) > 1:
            self._divide(candidates, self._follow_entropy(candidates))

    def _follow_entropy(self, candidates: Candidates) -> np.float32:
        candidates.sort()
        p = candidates.probabilities()
        p = p[p > 0.0]
        entropy = np.cumsum(-p * log32(p))[-1]
        highest = np.float32(-math.log(np.float32(1.0) / np.float32(len(candidates))))
        share = np.float32(math.pow(max(entropy / highest, 0.0), self._exponent))
        coolest = np.maximum(np.float32(0.0), self._temperature - self._spread)
        warmest = self._temperature + self._spread
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
        # No temperature, or one so small that float32 overflows: only the largest remains.
        logits = np.full_like(candidates.logits, -np.inf)
        logits[place] = candidates.logits[place]
        candidates.replace(logits)
