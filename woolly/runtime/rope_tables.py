"""Cosines and sines of every position for rotary embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly import _native
from woolly.plan import Plan, Rope, Step, rope_axes, rope_frequencies

if TYPE_CHECKING:
    from woolly.runtime.batch import Batch
    from woolly.runtime.weight_views import WeightViews

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


class RopeTables:
    """Tables [position, pair] of all rotary embeddings of a model, concatenated, which grow by doubling."""

    def __init__(self, plan: Plan, tensors: WeightViews) -> None:
        self._columns: dict[tuple[Rope, str], int] = {}  # first column of each embedding and its divisors
        frequencies: list[npt.NDArray[np.float64]] = [np.zeros(0)]
        magnitudes: list[npt.NDArray[np.float64]] = [np.zeros(0)]
        axes: list[npt.NDArray[np.intp]] = [np.zeros(0, np.intp)]
        backs: list[npt.NDArray[np.intp]] = [np.zeros(0, np.intp)]
        for step in plan.steps:
            key = _key(step)
            if key is None or key in self._columns:
                continue
            self._columns[key] = sum(len(part) for part in frequencies)
            turns, magnitude = rope_frequencies(key[0], tensors[key[1]].dequantize() if key[1] else None)
            frequencies.append(turns)
            magnitudes.append(np.full(len(turns), magnitude))
            backs.append(np.full(len(turns), key[0].back, np.intp))
            axes.append(rope_axes(key[0]) if key[0].sections else np.full(len(turns), -1, np.intp))
        self._frequencies, self._magnitudes = np.concatenate(frequencies), np.concatenate(magnitudes)
        self._axes = np.concatenate(axes)  # per column: axis of the rope positions; -1: the row's position
        self._backs = np.concatenate(backs)  # per column: offset subtracted from the row's position
        self.cosines = self.sines = np.zeros((0, 1), np.float32)

    def column(self, step: Step) -> int:
        """Return the first column of the step's embedding, or 0 for a step without rope."""
        key = _key(step)
        return 0 if key is None else self._columns[key]

    def extend(self, n: int) -> None:
        """Extend the tables to all positions below n."""
        if n <= len(self.cosines):
            return
        n = max(n, 2 * len(self.cosines), 256)
        if len(self._frequencies) == 0:
            self.cosines = self.sines = np.zeros((n, 1), np.float32)
            return
        # NumPy's cos and sin are not used because they differ between CPUs in the last bit.
        n_all = n - min(0, *self._backs.tolist())  # a negative offset uses a later position
        cosines, sines = (np.empty((n_all, len(self._frequencies)), np.float32) for _ in range(2))
        _native.rope_tables(self._frequencies, self._magnitudes, cosines, sines)
        for back in set(self._backs.tolist()) - {0}:
            at = np.ix_(np.maximum(np.arange(n) - back, 0), own := np.flatnonzero(self._backs == back))
            cosines[:n, own], sines[:n, own] = cosines[at], sines[at]
        self.cosines, self.sines = cosines[:n], sines[:n]

    def plain(self, columns: npt.NDArray[np.intp], n: int) -> Float32:
        """Return cosines, then sines, of each column for the first n positions: [2 columns, n], without magnitudes."""
        self.extend(n)
        tables = (table[:n, columns] / self.cosines[0, columns] for table in (self.cosines, self.sines))
        return np.ascontiguousarray(np.stack([*tables], axis=1).transpose(2, 1, 0).reshape(-1, n))

    def tables(self, batch: Batch, most: int) -> tuple[Float32, Float32, Int32 | None]:
        """Return the cosines, the sines, and the table row of each batch row; None: the row's position.

        Tables do not grow beyond `most` positions, because native code rejects larger positions.
        """
        if batch.rope_positions is None or self._axes.max(initial=-1) < 0:  # no rope has sections
            self.extend(min(int(batch.positions.max()) + 1, most))
            return self.cosines, self.sines, None
        positions = np.vstack([batch.rope_positions, batch.positions])  # so that axis -1 is the position
        if not 0 <= positions.min() <= positions.max() < most or self._axes.max() >= len(batch.rope_positions):
            raise ValueError(f"rope positions are outside of 0 to {most}, or fewer than the plan's rope has")
        self.extend(int(positions.max()) + 1)
        at = positions[self._axes].T, np.arange(len(self._axes))  # batch rows, columns
        return self.cosines[at], self.sines[at], np.arange(batch.n_rows, dtype=np.int32)


def _key(step: Step) -> tuple[Rope, str] | None:
    """Return the rotary embedding of a step and the name of its divisors, or None for a step without rope."""
    if (rope := step.rope()) is None:
        return None
    return rope, next((weight.name for weight in step.by_role("divisors")), "")
