"""PackedWeights: selects the matrices that keep their packed panels, within a byte budget.

A model reads its weights in a cycle, once per token. The least recently used tensor is then always the next one needed,
so an LRU cache smaller than the model would miss every time. Instead the first matrices stay packed permanently (every
read is a hit), and the other matrices are packed again from the mapped file, panel by panel, at each use.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly import _native
from woolly.runtime.program import WeightStats

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.runtime.weight_views import RowView, WeightViews


class PackedWeights:
    """Memory for packed panels, filled by native code."""

    def __init__(
        self,
        program: _native.Program,
        tensors: WeightViews,
        uses: Sequence[tuple[int, str, Sequence[int]]],  # (step, tensor, matrices) in order of use
        budget: int | None,
    ) -> None:
        self._uses = uses
        self._resident: dict[str, npt.NDArray[np.uint8]] = {}
        self._hits = self._misses = 0
        self._n_bytes = 0  # counted once: servers ask for it with each request
        left = budget
        for _, name, matrices in uses:
            n_bytes = _packed_bytes(tensors[name])
            if name in self._resident or (left is not None and n_bytes > left):
                continue
            memory = _anonymous(n_bytes)
            for matrix, part in zip(matrices, memory.reshape(len(matrices), -1), strict=True):
                program.set_packed(matrix, part)
            self._resident[name] = memory
            self._n_bytes += memory.nbytes
            left = None if left is None else left - n_bytes

    def ran(self, first: int, last: int) -> None:
        """Count the reads of one run."""
        for step, name, _ in self._uses:
            if first <= step < last:
                if name in self._resident:
                    self._hits += 1
                else:
                    self._misses += 1

    def stats(self) -> WeightStats:
        """Return the reads from packed memory, the reads that packed again, and the bytes reserved."""
        return WeightStats(self._hits, self._misses, 0, self._n_bytes)


def _packed_bytes(tensor: Tensor | RowView) -> int:
    *experts, rows, columns = (1, *tensor.shape)
    return math.prod(experts) * -(-rows // _native.PANEL_ROWS) * _native.PANEL_ROWS * tensor.type.row_bytes(columns)


def _anonymous(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Return memory that the system allocates page by page on first write, in 2 MiB pages if possible."""
    if sys.platform == "win32":
        return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)
    # Private: Linux has no huge pages for shared mappings by default.
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
