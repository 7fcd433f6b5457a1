"""Core of a GPU program: launches of a plan, captured as graphs for small batches, and their execution."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError, PlanError, RequestError
from woolly.plan import Plan, Value
from woolly.plan.passes import append
from woolly.plan.passes.plan_memory import plan_memory
from woolly.runtime.batch import Batch
from woolly.runtime.gpu.batch import BatchSlot, bucket
from woolly.runtime.gpu.batch_checks import check_batch, is_apart
from woolly.runtime.gpu.device import Device
from woolly.runtime.gpu.kernels import LogitRanker
from woolly.runtime.gpu.memory_requirements import ALIGNMENT, USUAL_ROWS
from woolly.runtime.gpu.multimodal_checks import MultimodalChecks
from woolly.runtime.gpu.state import GpuState
from woolly.runtime.options import Options, check_kv_type
from woolly.runtime.program import CancelledRun, WeightStats
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.state import State
from woolly.runtime.top_logits import NextStep, OverwrittenRows, Ranking
from woolly.runtime.weight_views import WeightViews, check_weights

Float32 = npt.NDArray[np.float32]
Meanwhile = Callable[[], None] | None
# Batch rows, output rows, `is_far`, `is_apart`, and rows in front of attention tiles (see Kernels and Launch).
_Kind = tuple[int, int, bool, bool, int]

# Batches of up to this many rows run as graphs, because launching them one by one is slower than the GPU.
_MAX_GRAPH_ROWS = 64
# Encoders often repeat an image size: larger batches run as a graph from their second run on.
_SEEN = 16
# The graph of a 40-layer model takes about 1 MB.
_MAX_GRAPHS = 32


@dataclass(frozen=True)
class _Run:
    """A queued run and its ranking."""

    batch: Batch
    number: int
    heads: npt.NDArray[np.void]  # valid once the mark is reached
    mark: int


class GraphRunner:
    """Device, weights and launches shared by a program and its draft. The last reference frees them."""

    def __init__(self, device: Device, plan: Plan, draft: Plan | None, views: WeightViews, options: Options) -> None:
        # Imported here: not needed on machines without a GPU.
        from woolly.runtime.gpu.emitter import Emitter
        from woolly.runtime.gpu.loader import Loader

        self._is_far = device.kernels.is_far
        self.device = device
        self.plan = plan if draft is None else append(plan, draft)
        self.max_rows = options.rows(USUAL_ROWS)
        # Bidirectional models keep no cache between runs, so f32 costs little memory and avoids rounding.
        self.kv_type = options.kv_type or ("f16" if plan.is_causal else "f32")
        check_kv_type(self.kv_type, gpu=device.kernels.backend)
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._times: list[int] | None = None
        self._hits = 0
        steps = [(at, step) for at, step in enumerate(self.plan.steps) if step.op in ("hidden", "input")]
        self._hidden = [(at, self.plan.values[step.output].width) for at, step in steps]
        self._is_tower = device.kernels.repeats and any(step.op == "input" for _, step in steps)
        self._seen: OrderedDict[tuple[_Kind, int, int], None] = OrderedDict()  # recent runs of encoders
        self._multimodal_checks = MultimodalChecks(self.plan, device.kernels.sees)
        weakref.finalize(self, device.close)
        check_weights(self.plan, views)
        layout = plan_memory(self.plan, self.max_rows, ALIGNMENT, device.kernels.joined(self.plan, self.kv_type))
        self.arena_bytes = layout.n_bytes
        rope_tables = RopeTables(self.plan, views)
        arena = device.allocate(layout.n_bytes)
        self._slot = BatchSlot(device, rope_tables)
        self._emitter = Emitter(
            self.plan,
            device,
            self.max_rows,
            self.kv_type,
            views,
            layout,
            arena,
            self._slot.address,
            rope_tables,
            draft,
        )
        self._emitter.emit()
        kernels = self._kernels()
        device.precompile(kernels)
        self.loader = Loader(device, views, list(self._emitter.weights.values()), kernels)
        weakref.finalize(
            self, self.loader.end
        )  # finalizers run in reverse: loader threads end before the device frees its memory
        numbers = {key: n for n, key in enumerate(self._emitter.weights, 1)}
        uses = self._emitter.uses
        # Cumulative by step: number of weights that must be loaded, and number of weight reads.
        most = (max((numbers[key] for key in keys), default=0) for keys in uses)
        self._needs = list(accumulate(most, max, initial=0))
        self._reads = list(accumulate(map(len, uses), initial=0))
        self._graphs: OrderedDict[tuple[_Kind, int, int], int] = OrderedDict()
        self._out = device.pinned(1 << 20)
        self._rankers: dict[int, LogitRanker] = {}  # for the plan and its draft, by the end of their steps
        self._n_runs = 0
        self._queued_run: _Run | None = None  # the last run, if it was queued ahead and not requested yet
        weakref.finalize(self, _finish, device)

    def _kernels(self) -> dict[str, int]:
        """Return the dynamic shared memory of each kernel, from single-row kernels to large-batch ones."""
        launches = [launch for step in self._emitter.launches for launch in step]
        launches.sort(key=lambda launch: (not launch.least <= 1 <= launch.most, launch.least))
        shared: dict[str, int] = {}
        for launch in launches:
            shared[launch.kernel] = max(launch.shared, shared.get(launch.kernel, 0))
        return shared

    def run(self, batch: Batch, state: State, plan: Plan, first: int, last: int, *, is_wanted: bool = True) -> Float32:
        """Run a range of steps of the plan and its draft and return the last value. `plan` belongs to the state.

        The result is empty unless `is_wanted`: downloading 4,096 wide rows takes as long as several encoder layers.
        """
        with self._lock:
            self._is_cancelled = False
            self._drop(self._queued_run)
            self._begin(batch, state, plan, first, last)
            try:
                self._start(batch, state, plan, first, last)
                out = self._download(batch, last) if is_wanted else self._result(0, 0)
            finally:
                self.device.wait()
            self._end(first, last)
            return out

    def rank(
        self,
        batch: Batch,
        state: State,
        plan: Plan,
        first: int,
        last: int,
        n: int,
        meanwhile: Meanwhile = None,
        next_step: NextStep | None = None,
    ) -> Ranking:
        """Return the top-n logits of each output row, and queue `next_step` before waiting for them."""
        logits = self.plan.values[self.plan.steps[last - 1].outputs[-1]]
        with self._lock:
            self._is_cancelled = False
            under_way, is_done = None, False
            try:
                if self.has_queued(batch):
                    under_way, self._queued_run = self._queued_run, None
                else:
                    self._drop(self._queued_run)
                    self._begin(batch, state, plan, first, last)
                    under_way = self._start_ranked(batch, state, plan, first, last, n)
                assert under_way is not None
                if next_step is not None and self._times is None and not self._is_cancelled:
                    self._begin(next_step.batch, state, plan, 0, last)
                    self._queued_run = self._start_ranked(
                        next_step.batch, state, plan, 0, last, next_step.n, next_step.picks
                    )
                if meanwhile is not None:
                    meanwhile()
                self.device.reach(under_way.mark, is_soon=True)
                is_done = True
            finally:
                if not is_done:
                    self.device.wait()
                    for run in (under_way, self._queued_run):
                        self._drop(run)
            self._end(first, last)
        heads = under_way.heads
        rows = partial(self._rows, logits, under_way.number)
        return Ranking(heads["ids"], heads["logits"], heads["sum"], heads["is_sound"] != 0, rows, heads["token"])

    def has_queued(self, batch: Batch) -> bool:
        """True if the batch is the last one queued ahead."""
        return self._queued_run is not None and self._queued_run.batch is batch

    def _rows(self, value: Value, run: int, first: int, last: int) -> Float32:
        """Download rows of a value of the latest run. Raises LostRows if a later run has overwritten it."""
        with self._lock:
            if run != self._n_runs:
                raise OverwrittenRows("another run has overwritten the logits")
            out = self._result(last - first, value.width)
            self.device.download(self._emitter.value(value.id) + 4 * first * value.width, out)
            self.device.wait()
            return out

    def _begin(self, batch: Batch, state: State, plan: Plan, first: int, last: int) -> None:
        """Check a batch and wait for the weights of its steps."""
        if not isinstance(state, GpuState):
            raise PlanError("the state belongs to another program; create one with new_state")
        hidden_width = next((width for at, width in self._hidden if first <= at < last), None)
        check_batch(batch, plan, state, self.max_rows, hidden_width, self._multimodal_checks)
        self.loader.wait(self._needs[last], lambda: self._is_cancelled)

    def _start(
        self,
        batch: Batch,
        state: State,
        plan: Plan,
        first: int,
        last: int,
        picks: npt.NDArray[np.void] | None = None,
    ) -> None:
        """Queue the steps of a batch. `picks` select its tokens from the previous ranking."""
        assert isinstance(state, GpuState)
        place = self._slot.fill(batch, state, plan, picks)
        self._n_runs += 1
        if place is not None:
            self._rankers[last].feed(place, batch.n_rows)
        self._queue(batch, first, last)

    def _start_ranked(
        self,
        batch: Batch,
        state: State,
        plan: Plan,
        first: int,
        last: int,
        n: int,
        picks: npt.NDArray[np.void] | None = None,
    ) -> _Run:
        """Queue the steps for a batch and the ranking of its logits."""
        self._start(batch, state, plan, first, last, picks)
        if last not in self._rankers:
            logits = self.plan.values[self.plan.steps[last - 1].outputs[-1]]
            address = self._emitter.value(logits.id)
            ranker = self.device.kernels.ranker
            assert ranker is not None  # otherwise the program has no `rank`
            self._rankers[last] = ranker(self.device, self._slot.address, address, logits.width, self.max_rows)
        heads = self._rankers[last].queue(n, len(batch.output_rows))
        return _Run(batch, self._n_runs, heads, self.device.mark())

    def _drop(self, run: _Run | None) -> None:
        """Drop a run. The next run overwrites its values."""
        if run is not None:
            self._queued_run = None
            self.device.times([run.mark])

    def _end(self, first: int, last: int) -> None:
        """Count the weight reads of a run. Raises CancelledRun if it was cancelled."""
        self._hits += self._reads[last] - self._reads[first]
        if self._is_cancelled:
            self._drop(self._queued_run)
            raise CancelledRun("the computation was cancelled")

    def _download(self, batch: Batch, last: int) -> Float32:
        value = self.plan.values[self.plan.steps[last - 1].outputs[-1]]
        rows = len(batch.output_rows) if value.rows == "output" else batch.n_rows
        out = self._result(rows, value.width)
        if rows:
            self.device.download(self._emitter.value(value.id), out)
        return out

    def _queue(self, batch: Batch, first: int, last: int) -> None:
        n_front = self.device.kernels.n_front(batch)
        kind = batch.n_rows, len(batch.output_rows), self._is_far(batch), is_apart(batch), n_front
        if self._times is not None:
            self._queue_timed(kind, first, last)
        elif batch.n_rows > _MAX_GRAPH_ROWS and self._is_seen((kind, first, last)):
            self._replay(kind, first, last)
        elif batch.n_rows > _MAX_GRAPH_ROWS or last - first < len(self.plan.steps) // 2:
            self._queue_steps(kind, first, last)
        else:
            self._replay((bucket(kind[0]), bucket(kind[1]), *kind[2:]), first, last)

    def _is_seen(self, key: tuple[_Kind, int, int]) -> bool:
        """True if an encoder recently ran the same steps on the same number of rows."""
        if not self._is_tower:
            return False
        is_seen = key in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return is_seen

    def _queue_steps(self, kind: _Kind, first: int, last: int) -> None:
        for step in range(first, last):
            if self._is_cancelled:
                return
            self._queue_step(kind, step, first, last)

    def _queue_step(self, kind: _Kind, step: int, first: int, last: int) -> None:
        n_rows, n_output, is_far, apart, n_front = kind
        for one in self._emitter.launches[step]:
            is_of = one.is_of(step, first, last, is_far, apart)
            grid = one.dimensions(n_rows, n_output, n_front) if is_of else None
            if grid is not None:
                self.device.launch(one.kernel, grid, one.block, one.shared, one.args, one.early, one.group)

    def _queue_timed(self, kind: _Kind, first: int, last: int) -> None:
        assert self._times is not None
        marks = [self.device.mark()]
        try:
            for step in range(first, last):
                self._queue_steps(kind, step, step + 1)
                marks.append(self.device.mark())
            self.device.wait()
        except BaseException:
            with suppress(DeviceError, RequestError):
                self.device.times(marks)  # releases the marks
            raise
        for step, time in zip(range(first, last), self.device.times(marks), strict=True):
            self._times[step] += time

    def _replay(self, kind: _Kind, first: int, last: int) -> None:
        """Queue the graph of a bucket. Kernels read the actual row count from the batch."""
        key = (kind, first, last)
        graph = self._graphs.pop(key, None)
        if graph is None:
            # Capture all steps, even if the run is cancelled.
            graph = self.device.capture(lambda: self._capture(*key))
            while len(self._graphs) >= _MAX_GRAPHS:
                self.device.forget(self._graphs.popitem(last=False)[1])
        self._graphs[key] = graph
        self.device.replay(graph)

    def _capture(self, kind: _Kind, first: int, last: int) -> None:
        for step in range(first, last):
            self._queue_step(kind, step, first, last)

    def _result(self, n_rows: int, width: int) -> Float32:
        """Return pinned memory for a value, reused or grown as needed."""
        n_bytes = 4 * n_rows * width
        if n_bytes > len(self._out):
            self._out = self.device.pinned(max(n_bytes, min(2 * len(self._out), 64 << 20)))
        return self._out[:n_bytes].view(np.float32).reshape(n_rows, width)

    def cancel(self) -> None:
        """Cancel the current run."""
        self._is_cancelled = True
        self.loader.wake()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Time the runs in the block. On exit the list has nanoseconds per step."""
        times: list[int] = []
        with self._lock:
            self._times = [0] * len(self.plan.steps)
        try:
            yield times
        finally:
            with self._lock:
                times += self._times
                self._times = None

    def stats(self) -> WeightStats:
        """Return weight statistics. Every read is a hit, because all weights are on the device."""
        return WeightStats(self._hits, 0, 0, self.loader.n_bytes, self.loader.n_missing)


def _finish(device: Device) -> None:
    """Wait for an unfinished run before its memory is freed."""
    with suppress(DeviceError, RequestError):
        device.wait()
