"""The Probe: what the kernels of this machine attain when memory does not hold them back.

A probe compiles a plan of one step over weights that fit the processor's caches, and times that step alone. It so
measures the same kernels, at any level and row count, that a model runs, and needs no code of its own for any
instruction set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from woolly.gguf import GGMLType, Tensor
from woolly.plan import CacheLayer, Plan, Tracer
from woolly.runtime import Batch, Options, pages_for
from woolly.runtime.cpu import CpuBackend, CpuProgram, CpuState

__all__ = ["Probe", "cached_columns"]

# Weights of each thread: half of what the second cache of a core often holds, because inputs need some of it too.
_BYTES_PER_THREAD = 512 << 10
_PANEL = 16
# The fewest panels of a thread, because a quarter of all, and of half of all, is shared out in pieces.
_PANELS = 16
_SHORT = 16  # rows below which a step is so short that what it takes to begin must be told apart
# Runs of a step, at least so many and so long: longer than the system gives a core to another program.
_REPETITIONS = 7
_SECONDS = 0.03


def cached_columns(type: GGMLType, columns: int) -> int:
    """All columns of a matrix, or the largest multiple of 256 of which a thread's fewest panels fit its cache."""
    most = _BYTES_PER_THREAD // (_PANELS * _PANEL)  # bytes of a row
    if type.row_bytes(columns) <= most:
        return columns
    return 256 * max(1, most // type.row_bytes(256))


@dataclass(frozen=True)
class _Blank:
    """A tensor of zeros. How fast a kernel is does not depend on what it multiplies."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return self.shape[0] * self.type.row_bytes(self.shape[1])

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return np.zeros((self.shape[0], self.type.row_bytes(self.shape[1])), np.uint8)


class Probe:
    """Measures single steps with so many threads at one level."""

    def __init__(self, threads: int, level: str, kv_type: str = "f16") -> None:
        self.threads, self.level, self.kv_type = threads, level, kv_type
        self._rates: dict[tuple[GGMLType, int, int], float] = {}

    def linear_rate(self, type: GGMLType, columns: int, n_rows: int) -> float:
        """Products per second that the kernels add up for so many rows at once, with weights in the cache.

        Rows too long for that are measured by a part of their columns: beyond some hundred these make no difference.
        """
        columns = cached_columns(type, columns)
        key = type, columns, n_rows
        if key not in self._rates:
            large = self._panels(type, columns)
            seconds = self._linear_seconds(type, columns, n_rows, large)
            panels = large
            if n_rows < _SHORT:
                # What both take alike (to wake, to quantize the input, to meet at the end) drops out.
                small = large // 2
                shorter = self._linear_seconds(type, columns, n_rows, small)
                if seconds > 1.3 * shorter:
                    seconds, panels = seconds - shorter, large - small
            self._rates[key] = n_rows * self.threads * panels * _PANEL * columns / max(seconds, 1e-9)
        return self._rates[key]

    def packing_seconds(self, type: GGMLType, columns: int) -> float:
        """Seconds per byte that a linear takes longer where its weights are not kept prepared."""
        columns = cached_columns(type, columns)
        panels = self._panels(type, columns)
        n_bytes = self.threads * panels * _PANEL * type.row_bytes(columns)
        kept, packed = (self._linear_seconds(type, columns, 1, panels, memory) for memory in (None, 0))
        return max(0.0, packed - kept) / n_bytes

    def attention_seconds(self, layers: tuple[CacheLayer, ...], n_heads: int, depth: int) -> float:
        """Seconds that attention over all layers takes for one token after so many."""
        tensors = {}
        for i, layer in enumerate(layers):
            for name, width in (("q", n_heads * layer.head_dim), ("k", layer.width), ("v", layer.width)):
                tensors[f"{name}{i}.weight"] = _Blank(f"{name}{i}.weight", GGMLType.F32, (1, width))
        tracer = Tracer("probe", tensors)
        out = None
        for i, layer in enumerate(layers):
            q, k, v = (
                tracer.embed(f"{name}{i}", width=tensors[f"{name}{i}.weight"].shape[1]) for name in ("q", "k", "v")
            )
            out = tracer.attention(q, k, v, layer=i, head_dim=layer.head_dim, scale=1.0)
        if out is None:
            return 0.0
        tracer.output(out)
        program = self._compile(tracer.plan(), tensors, 512)
        attends = [i for i, step in enumerate(program.fused.steps) if step.op == "attend"]
        pages = range(pages_for(depth + 1))
        state = program.new_state(len(pages))
        for first in range(0, depth, program.max_rows):
            n = min(program.max_rows, depth - first)
            batch = Batch.of([([0] * n, first, pages)], [])
            # All but attention itself: the cache is to be full, and no page of it the system's shared page of zeros.
            for i in range(len(program.fused.steps)):
                if i not in attends:
                    program.run(batch, state, i, i + 1)
        batch = Batch.of([([0], depth, pages)])
        return self._fastest(program, batch, state, attends)

    def _panels(self, type: GGMLType, columns: int) -> int:
        """Of each thread, for columns that let the fewest of them fit."""
        return _PANELS * max(1, min(4, _BYTES_PER_THREAD // (_PANELS * _PANEL * type.row_bytes(columns))))

    def _linear_seconds(
        self, type: GGMLType, columns: int, n_rows: int, panels: int, weight_memory: int | None = None
    ) -> float:
        rows = _PANEL * self.threads * panels
        tensors = {
            "x.weight": _Blank("x.weight", GGMLType.F32, (1, columns)),
            "w.weight": _Blank("w.weight", type, (rows, columns)),
        }
        tracer = Tracer("probe", tensors)
        tracer.output(tracer.linear(tracer.embed("x", width=columns), "w", width=rows))
        program = self._compile(tracer.plan(), tensors, n_rows, weight_memory)
        step = next(i for i, step in enumerate(program.fused.steps) if step.op == "linears")
        batch = Batch.of([([0] * n_rows, 0, range(pages_for(n_rows)))])
        return self._fastest(program, batch, program.new_state(pages_for(n_rows)), [step])

    def _compile(
        self, plan: Plan, tensors: Mapping[str, _Blank], max_rows: int, weight_memory: int | None = None
    ) -> CpuProgram:
        options = Options(
            threads=self.threads,
            level=self.level,
            kv_type=self.kv_type,
            max_rows=max_rows,
            weight_memory=weight_memory,
        )
        return CpuBackend().compile(plan, cast("Mapping[str, Tensor]", tensors), options)

    def _fastest(self, program: CpuProgram, batch: Batch, state: CpuState, steps: list[int]) -> float:
        """Seconds of some steps in the fastest of several runs; the first run packs weights and does not count."""
        program.run(batch, state)
        program.take_times()
        program.profile(True)
        fastest, n, start = float("inf"), 0, time.perf_counter()
        while n < _REPETITIONS or time.perf_counter() - start < _SECONDS:
            program.run(batch, state)
            times = program.take_times()
            fastest = min(fastest, sum(times[i] for i in steps) / 1e9)
            n += 1
        return fastest
