"""MersenneTwister: std::mt19937, so that seeds have the same meaning as in llama.cpp."""

from __future__ import annotations

import random

import numpy as np

_N, _FACTOR, _WORD = 624, 1_812_433_253, 0xFFFF_FFFF  # state words, and the multiplier between them


class MersenneTwister:
    """Uniform numbers from 32-bit draws, as in libstdc++."""

    def __init__(self, seed: int) -> None:
        self._next: float | None = None  # a number that was peeked but not used
        self._random = random.Random()
        self._random.setstate((3, (*_seeded(seed), _N), None))

    def uniform64(self) -> float:
        """Return a double below 1 from two draws, low half first."""
        u, self._next = self.peek64(), None
        return u

    def peek64(self) -> float:
        """Return the next value of `uniform64`. No other number may be drawn before it."""
        if self._next is None:
            self._next = self._drawn64()
        return self._next

    def _drawn64(self) -> float:
        u = self._random.getrandbits(64) * 2.0**-64
        return u if u < 1.0 else 1.0 - 2.0**-53

    def uniform32(self) -> float:
        """Return a float32 below 1 from one draw."""
        return min(float(np.float32(self._random.getrandbits(32))) / 2**32, 1.0 - 2.0**-24)


def _seeded(seed: int) -> list[int]:
    """Return the state of std::mt19937 for a seed. NumPy's generator would take 15 ms to import."""
    words = [seed & _WORD]
    for i in range(1, _N):
        words.append((_FACTOR * (words[-1] ^ words[-1] >> 30) + i) & _WORD)
    return words
