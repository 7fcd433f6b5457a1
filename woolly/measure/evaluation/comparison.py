"""Accuracy with its error, and paired comparison of two models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 4000


@dataclass(frozen=True)
class Accuracy:
    """Share of correct answers, with 95 % confidence interval."""

    n: int
    right: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Share of correct answers."""
        return self.right / self.n


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of two models."""

    only_first: int  # rows that only the first model answered correctly
    only_second: int
    p_value: float  # McNemar's exact test: probability of this difference if both models are equally good
    difference: float  # share of the first model minus share of the second
    low: float  # bootstrap over rows, 95 %
    high: float


def accuracy(right: Sequence[bool]) -> Accuracy:
    """Return the share of correct answers with its Wilson interval, which is also valid for few rows."""
    n, k, z = len(right), sum(right), 1.959964
    share = k / n
    middle, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Accuracy(n, k, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """Compare two lists of equal length. The result is deterministic."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    only_first, only_second = int((one > other).sum()), int((other > one).sum())
    difference = one - other
    random = np.random.default_rng(0)
    means = [difference[random.integers(0, len(one), len(one))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    p = _binomial(only_first, only_second)
    return Comparison(only_first, only_second, p, float(difference.mean()), float(low), float(high))


def _binomial(a: int, b: int) -> float:
    """Return the p-value of a two-sided binomial test for a and b outcomes of a fair coin."""
    n, fewer = a + b, min(a, b)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))
