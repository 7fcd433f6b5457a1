"""Accuracy with its error, and two models on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 4000


@dataclass(frozen=True)
class Accuracy:
    """Share of right answers, with the range that holds it in 95 of 100 samples of rows."""

    n: int
    right: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Share of right answers."""
        return self.right / self.n


@dataclass(frozen=True)
class Comparison:
    """One model against another on the same rows."""

    only_first: int  # rows that only the first model had right
    only_second: int
    p_value: float  # of McNemar's exact test: how likely such a difference is if both are equally good
    difference: float  # share of the first minus share of the second
    low: float  # bootstrap over rows, 95 %
    high: float


def accuracy(right: Sequence[bool]) -> Accuracy:
    """The share of right answers; its range by Wilson's formula, which holds for few rows, too."""
    n, k, z = len(right), sum(right), 1.959964
    share = k / n
    middle, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Accuracy(n, k, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """The paired comparison of two lists of equal length; the same numbers for the same rows."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    only_first, only_second = int((one > other).sum()), int((other > one).sum())
    difference = one - other
    random = np.random.default_rng(0)
    means = [difference[random.integers(0, len(one), len(one))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    p = _binomial(only_first, only_second)
    return Comparison(only_first, only_second, p, float(difference.mean()), float(low), float(high))


def _binomial(a: int, b: int) -> float:
    """Both tails of a fair coin that fell a and b times on its sides."""
    n, fewer = a + b, min(a, b)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))
