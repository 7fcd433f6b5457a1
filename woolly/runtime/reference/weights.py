"""WeightStore: tensors of the file, dequantized on first use and cached within a byte budget."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from woolly.runtime.program import WeightStats
from woolly.runtime.weight_views import WeightViews

Float32 = npt.NDArray[np.float32]


class WeightStore:
    """Dequantized tensors with LRU eviction. Thread-safe."""

    def __init__(self, tensors: WeightViews, budget: int | None = None) -> None:
        """`budget`: maximum bytes of cached tensors; None: no limit."""
        self._tensors = tensors
        self._budget = budget
        self._kept: OrderedDict[str, Float32] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = self._n_bytes = 0

    def get(self, name: str) -> Float32:
        """Return the complete tensor in f32."""
        with self._lock:
            array = self._kept.get(name)
            if array is not None:
                self._hits += 1
                self._kept.move_to_end(name)
                return array
            self._misses += 1
        array = self._tensors[name].dequantize()
        array.setflags(write=False)
        with self._lock:
            if name not in self._kept and (self._budget is None or array.nbytes <= self._budget):
                self._kept[name] = array
                self._n_bytes += array.nbytes
                while self._budget is not None and self._n_bytes > self._budget:
                    _, evicted = self._kept.popitem(last=False)
                    self._n_bytes -= evicted.nbytes
                    self._evictions += 1
        return array

    def rows(self, name: str, indices: npt.NDArray[np.int32]) -> Float32:
        """Return rows of a matrix without dequantizing the rest."""
        with self._lock:
            array = self._kept.get(name)
        return self._tensors[name].dequantize(indices) if array is None else array[indices]

    def stats(self) -> WeightStats:
        """Return the counters since the start and the cached bytes."""
        with self._lock:
            return WeightStats(self._hits, self._misses, self._evictions, self._n_bytes)
