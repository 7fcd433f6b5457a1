"""GpuProgram: a fused plan as kernel launches, captured as graphs for small batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError, UnsupportedError
from woolly.gguf import Tensor
from woolly.plan import Plan
from woolly.plan.passes import fuse
from woolly.runtime.batch import Batch
from woolly.runtime.biased_keys import warn_of_biased_keys
from woolly.runtime.gpu.device import Device
from woolly.runtime.gpu.graph_runner import GraphRunner, Meanwhile
from woolly.runtime.gpu.memory_requirements import RESERVE, USUAL_ROWS
from woolly.runtime.gpu.state import GpuState, check_heads
from woolly.runtime.options import Options
from woolly.runtime.program import About, WeightStats, checked_range
from woolly.runtime.state import State
from woolly.runtime.top_logits import NextStep, Ranking
from woolly.runtime.weight_views import WeightViews

Float32 = npt.NDArray[np.float32]


class GpuProgram:
    """Plan compiled for one GPU. Runs are serialized."""

    def __init__(self, device: Device, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> None:
        self.plan = plan
        self.max_rows = options.rows(USUAL_ROWS)
        if options.level not in (None, device.level):
            raise RequestError(f"kernel level {options.level!r} cannot run on {device.name}, which is {device.level}")
        check_heads(plan)
        if plan.draft is not None and plan.draft.mask is not None:
            raise UnsupportedError("block-diffusion drafts run only on the CPU: use speculation 'none' or device cpu")
        if plan.draft is not None:
            check_heads(plan.draft)
        passes = device.kernels.fusions(options.kv_type)
        self.running_plan = fuse(plan, passes)
        draft = fuse(plan.draft, passes) if plan.draft is not None else None
        self._core = GraphRunner(device, self.running_plan, draft, WeightViews(tensors), options)
        warn_of_biased_keys(plan, tensors, self._core.kv_type, centers=device.kernels.centers)
        budget, n_bytes = options.weight_memory, self._core.loader.n_bytes
        if budget is not None and n_bytes > budget:
            raise RequestError(
                f"weight_memory is {budget / 1e9:,.1f} GB, and the weights take {n_bytes / 1e9:,.1f} GB of the GPU,"
                " which keeps all or none; leave it out, or use backend='cpu'",
                field="weight_memory",
            )
        free, total = device.memory()
        self.about = About(
            device.kernels.backend,
            device.level,
            options.threads or 1,
            self._core.arena_bytes,
            self._core.kv_type,
            memory=max(0, free - RESERVE),
            device=device.name,
            device_memory=total,
            device_bandwidth=device.bandwidth,
            device_driver=device.driver,
            arithmetic=device.kernels.arithmetic,
        )
        kind = GpuDraft if device.kernels.ranker is None else RankingDraft
        self.draft = None if plan.draft is None or draft is None else kind(self._core, plan.draft, draft)

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> GpuState:
        """Allocate an empty cache: `n_pages` pages, `window_pages` per sliding window, `n_slots` recurrent states."""
        return GpuState(self._core.device, self.plan, n_pages, self._core.kv_type, n_slots, window_pages)

    def load_weights(self) -> None:
        """Start uploading weights in the background, in order of use."""
        self._core.loader.start()

    def close(self) -> None:
        """Stop background threads. The last reference frees the device memory."""
        self._core.loader.end()

    def weight_stats(self) -> WeightStats:
        """Return weight statistics. Every read is a hit, because all weights are on the device."""
        return self._core.stats()

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps of the fused plan and return a view of the last value, valid until the next run."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        return self._core.run(batch, state, self.plan, first, last)

    def advance(self, batch: Batch, state: State, first: int, last: int) -> None:
        """Run steps of the fused plan without downloading values."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        self._core.run(batch, state, self.plan, first, last, is_wanted=False)

    def cancel(self) -> None:
        """Cancel the current run, at its next step or, if it runs as a graph, at its end."""
        self._core.cancel()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Time every run in the block. When it ends, the list has nanoseconds per fused step."""
        times, all_times = list[int](), list[int]()
        try:
            with self._core.timed() as all_times:
                yield times
        finally:
            times += all_times[: len(self.running_plan.steps)]


class RankingProgram(GpuProgram):
    """Program that ranks logits on the GPU, so that only the top ones are downloaded."""

    def rank(
        self,
        batch: Batch,
        state: State,
        n: int,
        first: int = 0,
        meanwhile: Meanwhile = None,
        next_step: NextStep | None = None,
    ) -> Ranking:
        """Run the steps from `first` on and rank the logits on the GPU. The result is valid until the next run.

        The GPU starts `next_step` before the host reads the ranking.
        """
        first, last = checked_range(first, None, len(self.running_plan.steps))
        return self._core.rank(batch, state, self.plan, first, last, n, meanwhile, next_step)

    def has_queued(self, batch: Batch) -> bool:
        """True if the batch is the last one queued ahead."""
        return self._core.has_queued(batch)


class GpuDraft:
    """Draft model of a plan: the last steps of the program, with their own KV cache."""

    def __init__(self, core: GraphRunner, plan: Plan, running_plan: Plan) -> None:
        self.running_plan = running_plan
        self._core = core
        self._plan = plan

    def new_state(self, n_pages: int) -> GpuState:
        """Allocate an empty cache of `n_pages` pages."""
        return GpuState(self._core.device, self._plan, n_pages, self._core.kv_type)

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps of the fused draft and return a view of the last value, valid until the next run."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        n_before = len(self._core.plan.steps) - len(self.running_plan.steps)
        return self._core.run(batch, state, self._plan, n_before + first, n_before + last)


class RankingDraft(GpuDraft):
    """Draft model of a program that ranks logits on the GPU."""

    def rank(self, batch: Batch, state: State, n: int, first: int = 0, meanwhile: Meanwhile = None) -> Ranking:
        """Run the steps from `first` on and rank the logits on the GPU. The result is valid until the next run."""
        first, last = checked_range(first, None, len(self.running_plan.steps))
        n_before = len(self._core.plan.steps) - len(self.running_plan.steps)
        return self._core.rank(batch, state, self._plan, n_before + first, n_before + last, n, meanwhile)
