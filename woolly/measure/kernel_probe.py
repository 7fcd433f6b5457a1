"""Speed of this machine's kernels when memory is not the limit.

Compiles a plan with one step whose weights fit in the CPU's caches, and times the step. This measures the model's
kernels at any level and row count without code for specific instruction sets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from woolly._native import PANEL_ROWS
from woolly.gguf import Tensor
from woolly.plan import Paged, Plan, Tracer
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, Program, State, get_backend, pages_for

# Weights per thread: half of a typical L2 cache, which also contains inputs.
_BYTES_PER_THREAD = 512 << 10
# Minimum panels per thread. A quarter of all panels is scheduled dynamically, also in the half-size run.
_PANELS = 16
_SHORT = 16  # below this number of rows, start-up cost is significant and is subtracted
# Minimum runs and seconds per step, longer than a time slice of another program.
_REPETITIONS = 7
_SECONDS = 0.03
# Rows and columns of a matrix on a GPU, and the minimum batch rows that may be compute-bound.
_GPU_SIDE, _MANY_ROWS = 8192, 64


def cached_columns(type: GGMLType, columns: int) -> int:
    """Return `columns`, or the largest multiple of 256 with which a thread's minimum panels fit its cache."""
    most = _BYTES_PER_THREAD // (_PANELS * PANEL_ROWS)  # bytes per row
    if type.row_bytes(columns) <= most:
        return columns
    return 256 * max(1, most // type.row_bytes(256))


@dataclass(frozen=True)
class _Blank:
    """Tensor of zeros. A kernel's speed does not depend on the values."""

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
    """Times single steps with `threads` threads at one level."""

    def __init__(
        self, threads: int, level: str | None, kv_type: str = "f16", backend: str = "cpu", device: str | None = None
    ) -> None:
        self.threads, self.level, self.kv_type, self.backend = threads, level, kv_type, backend
        self.device = device
        self._rates: dict[tuple[GGMLType, int, int], float] = {}

    def linear_rate(self, type: GGMLType, columns: int, n_rows: int) -> float:
        """Return multiply-adds per second of a linear step for a batch of n rows, with cached weights.

        Rows that are too long for the cache are shortened. Beyond some hundred columns the rate is constant.
        """
        columns = cached_columns(type, columns)
        key = type, columns, n_rows
        if key not in self._rates:
            large = self._panels(type, columns)
            seconds = self._linear_seconds(type, columns, n_rows, large)
            panels = large
            if n_rows < _SHORT:
                # The difference cancels common overhead: wake-up, quantization of inputs, the last barrier.
                small = large // 2
                shorter = self._linear_seconds(type, columns, n_rows, small)
                if seconds > 1.3 * shorter:
                    seconds, panels = seconds - shorter, large - small
            self._rates[key] = n_rows * self.threads * panels * PANEL_ROWS * columns / max(seconds, 1e-9)
        return self._rates[key]

    def packing_seconds(self, type: GGMLType, columns: int) -> float:
        """Return the extra seconds per byte of a linear step whose weights are packed at every use."""
        columns = cached_columns(type, columns)
        panels = self._panels(type, columns)
        n_bytes = self.threads * panels * PANEL_ROWS * type.row_bytes(columns)
        kept, packed = (self._linear_seconds(type, columns, 1, panels, memory) for memory in (None, 0))
        return max(0.0, packed - kept) / n_bytes

    def attention_seconds(self, layers: Sequence[Paged], n_heads: int, depth: int) -> float:
        """Return the seconds of attention in all layers for one token after `depth` tokens."""
        tensors = {}
        for i, layer in enumerate(layers):
            for name, width in (
                ("q", n_heads * layer.k_dim),
                ("k", layer.heads * layer.k_dim),
                ("v", layer.heads * layer.v_dim),
            ):
                tensors[f"{name}{i}.weight"] = _Blank(f"{name}{i}.weight", GGMLType.F32, (1, width))
        tracer = Tracer("probe", tensors)
        out = None
        for i, layer in enumerate(layers):
            q, k, v = (
                tracer.embed(f"{name}{i}", width=tensors[f"{name}{i}.weight"].shape[1]) for name in ("q", "k", "v")
            )
            out = tracer.attention(q, k, v, head_dim=layer.k_dim, scale=1.0)
        if out is None:
            return 0.0
        tracer.output(out)
        program = self._compile(tracer.plan(), tensors, 512)
        attends = [i for i, step in enumerate(program.running_plan.steps) if step.kind.reads]
        pages = range(pages_for(depth + 1))
        state = program.new_state(len(pages))
        for first in range(0, depth, program.max_rows):
            n = min(program.max_rows, depth - first)
            batch = Batch.of([([0] * n, first, pages)], [])
            # All steps except attention. They write the cache, so its pages are not the system's shared zero page.
            for i in range(len(program.running_plan.steps)):
                if i not in attends:
                    program.run(batch, state, i, i + 1)
        batch = Batch.of([([0], depth, pages)])
        return self._fastest(program, batch, state, attends)

    def _panels(self, type: GGMLType, columns: int) -> int:
        """Return panels per thread: one to four times the minimum, limited by the cache."""
        return _PANELS * max(1, min(4, _BYTES_PER_THREAD // (_PANELS * PANEL_ROWS * type.row_bytes(columns))))

    def _linear_seconds(
        self, type: GGMLType, columns: int, n_rows: int, panels: int, weight_memory: int | None = None
    ) -> float:
        return self._matrix_seconds(type, columns, PANEL_ROWS * self.threads * panels, n_rows, weight_memory)

    def _matrix_seconds(
        self, type: GGMLType, columns: int, rows: int, n_rows: int, weight_memory: int | None = None
    ) -> float:
        tensors = {
            "x.weight": _Blank("x.weight", GGMLType.F32, (1, columns)),
            "w.weight": _Blank("w.weight", type, (rows, columns)),
        }
        tracer = Tracer("probe", tensors)
        tracer.output(tracer.linear(tracer.embed("x", width=columns), "w", width=rows))
        program = self._compile(tracer.plan(), tensors, n_rows, weight_memory)
        step = next(i for i, step in enumerate(program.running_plan.steps) if step.matrices)
        batch = Batch.of([([0] * n_rows, 0, range(pages_for(n_rows)))])
        return self._fastest(program, batch, program.new_state(pages_for(n_rows)), [step])

    def _compile(
        self, plan: Plan, tensors: Mapping[str, _Blank], max_rows: int, weight_memory: int | None = None
    ) -> Program:
        options = Options(
            threads=self.threads,
            level=self.level,
            device=self.device,
            kv_type=self.kv_type,
            max_rows=max_rows,
            weight_memory=weight_memory,
        )
        return get_backend(self.backend).compile(plan, cast("Mapping[str, Tensor]", tensors), options)

    def _fastest(self, program: Program, batch: Batch, state: State, steps: list[int]) -> float:
        """Return the seconds of some steps in the fastest of several runs. The first run packs weights and is ignored.

        Runs with a stopped clock, which can happen on virtual machines, are also ignored.
        """
        program.run(batch, state)
        measured: list[float] = []
        start = time.perf_counter()
        while len(measured) < _REPETITIONS or time.perf_counter() - start < _SECONDS:
            with program.timed() as times:
                program.run(batch, state)
            measured.append(sum(times[i] for i in steps) / 1e9)
        return min((seconds for seconds in measured if seconds > 0), default=0.0)


class GpuProbe(Probe):
    """Times single steps on a GPU. Its cache contains a matrix that is large enough to use the entire GPU."""

    def linear_rate(self, type: GGMLType, columns: int, n_rows: int) -> float:
        """Return multiply-adds per second of a linear step for n rows, or infinity for small, memory-bound batches."""
        if n_rows < _MANY_ROWS:
            return math.inf
        type = GGMLType.F16 if type is GGMLType.F32 else type  # attention multiplies in f16
        key = type, _GPU_SIDE, n_rows
        if key not in self._rates:
            seconds = self._matrix_seconds(type, _GPU_SIDE, _GPU_SIDE, n_rows)
            self._rates[key] = n_rows * _GPU_SIDE * _GPU_SIDE / max(seconds, 1e-9)
        return self._rates[key]

    def packing_seconds(self, type: GGMLType, columns: int) -> float:
        """Return 0: a GPU packs all weights when it loads them."""
        return 0.0
