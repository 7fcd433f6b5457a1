"""Turns: cosines and sines of every position, as rotary embeddings need them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly import _native
from woolly.plan import Plan, Rope, Step, rope_frequencies
from woolly.runtime.views import Views

__all__ = ["Turns"]

Float32 = npt.NDArray[np.float32]


class Turns:
    """Tables [position, pair] of the model's rotary embeddings side by side, grown by doubling."""

    def __init__(self, plan: Plan, tensors: Views) -> None:
        self._columns: dict[tuple[Rope, str], int] = {}  # first column of each embedding with its divisors
        frequencies: list[npt.NDArray[np.float64]] = [np.zeros(0)]
        magnitudes: list[npt.NDArray[np.float64]] = [np.zeros(0)]
        for step in plan.steps:
            key = _key(step)
            if key is None or key in self._columns:
                continue
            self._columns[key] = sum(len(part) for part in frequencies)
            turns, magnitude = rope_frequencies(key[0], tensors[key[1]].dequantize() if key[1] else None)
            frequencies.append(turns)
            magnitudes.append(np.full(len(turns), magnitude))
        self._frequencies, self._magnitudes = np.concatenate(frequencies), np.concatenate(magnitudes)
        self.cosines = self.sines = np.zeros((0, 1), np.float32)

    def column(self, step: Step) -> int:
        """The first column of the step's embedding; 0 if it turns nothing."""
        key = _key(step)
        return 0 if key is None else self._columns[key]

    def extend(self, n: int) -> None:
        """Makes the tables hold all positions below n."""
        if n <= len(self.cosines):
            return
        n = max(n, 2 * len(self.cosines), 256)
        if len(self._frequencies) == 0:
            self.cosines = self.sines = np.zeros((n, 1), np.float32)
            return
        # Not NumPy's cos and sin: its builds use functions of the CPU, which differ in the last bit.
        self.cosines, self.sines = (np.empty((n, len(self._frequencies)), np.float32) for _ in range(2))
        _native.turns(self._frequencies, self._magnitudes, self.cosines, self.sines)


def _key(step: Step) -> tuple[Rope, str] | None:
    """The rotary embedding of a step, and the name of its divisors; None if it turns nothing."""
    if "rope" not in step.kind.attributes or (rope := step.rope()) is None:
        return None
    return rope, next((weight.name for weight in step.by_role("divisors")), "")
