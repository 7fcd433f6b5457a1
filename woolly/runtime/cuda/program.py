"""The CUDA backend: a fused plan as launches of kernels, recorded as graphs for small batches."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError, PlanError, RequestError
from woolly.gguf import Tensor
from woolly.plan import Plan, Value
from woolly.plan.passes import append, fuse
from woolly.plan.passes.place import place
from woolly.runtime.batch import Batch
from woolly.runtime.cuda.batch import BatchSlot, bucket, check_batch, is_apart
from woolly.runtime.cuda.device import Device
from woolly.runtime.cuda.driver import find_level, open_device
from woolly.runtime.cuda.measure import ALIGNMENT, RESERVE, USUAL_ROWS
from woolly.runtime.cuda.rank import Ranker
from woolly.runtime.cuda.state import CudaState, check_heads
from woolly.runtime.devices import parse_devices
from woolly.runtime.options import Options
from woolly.runtime.program import About, CancelledRun, WeightStats, checked_range
from woolly.runtime.ranking import Ranking
from woolly.runtime.state import State
from woolly.runtime.turns import Turns
from woolly.runtime.views import Views

__all__ = ["CudaBackend", "CudaDraft", "CudaProgram"]

Float32 = npt.NDArray[np.float32]
Result = TypeVar("Result")
Meanwhile = Callable[[], None] | None
_Kind = tuple[int, int, bool, bool]  # rows of a batch and of output; whether it is far, and its sequences apart

# Batches of up to this many rows run as graphs: there the host would be slower than the device.
_MOST_GRAPHED = 64
# A graph of a model of 40 layers takes about a megabyte.
_MAX_GRAPHS = 32


class _Core:
    """What a program and its draft share: the device and everything on it. The last reference frees it."""

    def __init__(self, device: Device, plan: Plan, draft: Plan | None, views: Views, options: Options) -> None:
        # Imported here: the emitters of all ops take 30 ms, which a machine without a GPU need not wait for.
        from woolly.runtime.cuda.emit import Emitter
        from woolly.runtime.cuda.loader import Loader
        from woolly.runtime.cuda.ops.attention import is_far, joined

        self._is_far = is_far
        self.device = device
        self.plan = plan if draft is None else append(plan, draft)
        self.max_rows = options.rows(USUAL_ROWS)
        # Nothing is kept of texts whose rows all see each other: their cache is small, and need not be rounded.
        self.kv_type = options.kv_type or ("f16" if plan.is_causal else "f32")
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._times: list[int] | None = None
        self._hits = 0
        steps = enumerate(self.plan.steps)
        self._hidden = [(at, self.plan.values[step.output].width) for at, step in steps if step.op == "hidden"]
        weakref.finalize(self, device.close)
        placement = place(self.plan, self.max_rows, ALIGNMENT, joined(self.plan, self.kv_type))
        self.arena_bytes = placement.n_bytes
        turns = Turns(self.plan, views)
        arena = device.allocate(placement.n_bytes)
        self._slot = BatchSlot(device, turns)
        self._emitter = Emitter(
            self.plan, device, self.max_rows, self.kv_type, views, placement, arena, self._slot.address, turns, draft
        )
        self._emitter.emit()
        self.loader = Loader(device, views, list(self._emitter.weights.values()), self._kernels())
        weakref.finalize(self, self.loader.end)  # the last comes first: no thread fills what the device gave back
        numbers = {key: n for n, key in enumerate(self._emitter.weights, 1)}
        uses = self._emitter.uses
        # Up to each step: weights that must be loaded, and how many weights the steps read.
        most = (max((numbers[key] for key in keys), default=0) for keys in uses)
        self._needs = list(accumulate(most, max, initial=0))
        self._reads = list(accumulate(map(len, uses), initial=0))
        self._graphs: OrderedDict[tuple[_Kind, int, int], int] = OrderedDict()
        self._out = device.pinned(1 << 20)
        self._rankers: dict[int, Ranker] = {}  # of the plan and its draft, by the number of their last step
        self._n_runs = 0

    def _kernels(self) -> dict[str, int]:
        """Kernels and the dynamic shared memory of each: first those of a run of one row."""
        launches = [launch for step in self._emitter.launches for launch in step]
        launches.sort(key=lambda launch: not launch.least <= 1 <= launch.most)
        shared: dict[str, int] = {}
        for launch in launches:
            shared[launch.kernel] = max(launch.shared, shared.get(launch.kernel, 0))
        return shared

    def run(self, batch: Batch, state: State, plan: Plan, first: int, last: int) -> Float32:
        """The value of the last of some steps of the plan and its draft; `plan` is that of the state."""
        return self._run(batch, state, plan, first, last, lambda: self._download(batch, last))

    def rank(
        self, batch: Batch, state: State, plan: Plan, first: int, last: int, n: int, meanwhile: Meanwhile = None
    ) -> Ranking:
        """The largest logits of each row, if the last of the steps gives logits."""
        logits = self.plan.values[self.plan.steps[last - 1].outputs[-1]]

        def queue() -> tuple[npt.NDArray[np.void], int]:
            if last not in self._rankers:
                address = self._emitter.value(logits.id)
                self._rankers[last] = Ranker(self.device, self._slot.address, address, logits.width, self.max_rows)
            return self._rankers[last].queue(n, len(batch.output_rows)), self._n_runs

        heads, run = self._run(batch, state, plan, first, last, queue, meanwhile)
        sound, rows = heads["is_sound"] != 0, partial(self._rows, logits, run)
        return Ranking(heads["ids"], heads["logits"], heads["sum"], sound, rows)

    def _rows(self, value: Value, run: int, first: int, last: int) -> Float32:
        """Rows of what a run left behind."""
        with self._lock:
            if run != self._n_runs:
                raise PlanError("another run has overwritten the logits")
            out = self._result(last - first, value.width)
            self.device.download(self._emitter.value(value.id) + 4 * first * value.width, out)
            self.device.wait()
            return out

    def _run(
        self,
        batch: Batch,
        state: State,
        plan: Plan,
        first: int,
        last: int,
        download: Callable[[], Result],
        meanwhile: Meanwhile = None,
    ) -> Result:
        """What `download` gives, which queues the copy of what is wanted behind the steps."""
        if not isinstance(state, CudaState):
            raise PlanError("the state is not one of this program; new_state makes one")
        with self._lock:
            self._is_cancelled = False
            hidden_width = next((width for at, width in self._hidden if first <= at < last), None)
            check_batch(batch, plan, state, self.max_rows, hidden_width)
            self.loader.wait(self._needs[last], lambda: self._is_cancelled)
            self._slot.fill(batch, state, plan)
            try:
                self._n_runs += 1
                self._queue(batch, first, last)
                out = download()
                if meanwhile is not None:
                    meanwhile()
            finally:
                self.device.wait()
            self._hits += self._reads[last] - self._reads[first]
            if self._is_cancelled:
                raise CancelledRun("the computation was cancelled")
            return out

    def _download(self, batch: Batch, last: int) -> Float32:
        value = self.plan.values[self.plan.steps[last - 1].outputs[-1]]
        rows = len(batch.output_rows) if value.rows == "output" else batch.n_rows
        out = self._result(rows, value.width)
        if rows:
            self.device.download(self._emitter.value(value.id), out)
        return out

    def _queue(self, batch: Batch, first: int, last: int) -> None:
        kind = batch.n_rows, len(batch.output_rows), self._is_far(batch), is_apart(batch)
        if self._times is not None:
            self._queue_timed(kind, first, last)
        elif batch.n_rows > _MOST_GRAPHED or last - first < len(self.plan.steps) // 2:
            self._queue_steps(kind, first, last)
        else:
            self._replay((bucket(kind[0]), bucket(kind[1]), *kind[2:]), first, last)

    def _queue_steps(self, kind: _Kind, first: int, last: int) -> None:
        for step in range(first, last):
            if self._is_cancelled:
                return
            self._queue_step(kind, step, first, last)

    def _queue_step(self, kind: _Kind, step: int, first: int, last: int) -> None:
        n_rows, n_output, *where = kind
        for one in self._emitter.launches[step]:
            grid = one.dimensions(n_rows, n_output) if one.is_of(step, first, last, *where) else None
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
                self.device.times(marks)  # which drops them
            raise
        for step, time in zip(range(first, last), self.device.times(marks), strict=True):
            self._times[step] += time

    def _replay(self, kind: _Kind, first: int, last: int) -> None:
        """Queues the graph of a bucket; kernels read the true number of rows from the batch."""
        key = (kind, first, last)
        graph = self._graphs.pop(key, None)
        if graph is None:
            # A graph must be whole, even if a caller cancels meanwhile.
            graph = self.device.capture(lambda: self._capture(*key))
            while len(self._graphs) >= _MAX_GRAPHS:
                self.device.forget(self._graphs.popitem(last=False)[1])
        self._graphs[key] = graph
        self.device.replay(graph)

    def _capture(self, kind: _Kind, first: int, last: int) -> None:
        for step in range(first, last):
            self._queue_step(kind, step, first, last)

    def _result(self, n_rows: int, width: int) -> Float32:
        """Memory of the host for a value; the same each time, unless a larger value needs more."""
        n_bytes = 4 * n_rows * width
        if n_bytes > len(self._out):
            self._out = self.device.pinned(max(n_bytes, min(2 * len(self._out), 64 << 20)))
        return self._out[:n_bytes].view(np.float32).reshape(n_rows, width)

    def cancel(self) -> None:
        """Stops the run that is under way."""
        self._is_cancelled = True
        self.loader.wake()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Nanoseconds of each step of the runs in the block."""
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
        """Every read is a hit: all weights are on the device."""
        return WeightStats(self._hits, 0, 0, self.loader.n_bytes)


class CudaProgram:
    """A plan compiled for one GPU. One thread at a time may run it; others wait."""

    def __init__(self, device: Device, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> None:
        self.plan = plan
        self.running_plan = fuse(plan)
        self.max_rows = options.rows(USUAL_ROWS)
        level = f"sm_{device.architecture}"
        if options.level not in (None, level):
            raise RequestError(f"kernel level {options.level!r} cannot run on {device.name}, which is {level}")
        check_heads(plan)
        draft = None
        if plan.draft is not None:
            check_heads(plan.draft)
            draft = fuse(plan.draft)
        self._core = _Core(device, self.running_plan, draft, Views(tensors), options)
        budget, n_bytes = options.weight_memory, self._core.loader.n_bytes
        if budget is not None and n_bytes > budget:
            raise RequestError(
                f"weight_memory is {budget / 1e9:,.1f} GB, and the weights take {n_bytes / 1e9:,.1f} GB of the GPU,"
                " which keeps all or none; leave it out, or use backend='cpu'",
                field="weight_memory",
            )
        free, total = device.memory()
        self.about = About(
            "cuda",
            level,
            options.threads or 1,
            self._core.arena_bytes,
            self._core.kv_type,
            memory=max(0, free - RESERVE),
            device=device.name,
            device_memory=total,
            device_bandwidth=device.bandwidth,
        )
        self.draft = None if plan.draft is None or draft is None else CudaDraft(self._core, plan.draft, draft)

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> CudaState:
        """An empty cache of `n_pages` pages, of `window_pages` in the windows, and of `n_slots` slots."""
        return CudaState(self._core.device, self.plan, n_pages, self._core.kv_type, n_slots, window_pages)

    def load_weights(self) -> None:
        """Starts to upload weights in the background, in order of use."""
        self._core.loader.start()

    def close(self) -> None:
        """Ends the work in the background. Memory on the device is given back with the last reference."""
        self._core.loader.end()

    def weight_stats(self) -> WeightStats:
        """Every read is a hit: all weights are on the device."""
        return self._core.stats()

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Runs steps of the fused plan and returns a view of the last value, valid until the next run."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        return self._core.run(batch, state, self.plan, first, last)

    def rank(self, batch: Batch, state: State, n: int, first: int = 0, meanwhile: Meanwhile = None) -> Ranking:
        """Runs steps to the end, and ranks the logits on the GPU; all that it gives is valid until the next run."""
        first, last = checked_range(first, None, len(self.running_plan.steps))
        return self._core.rank(batch, state, self.plan, first, last, n, meanwhile)

    def cancel(self) -> None:
        """Stops a run that is under way, at its next step or, if it runs as a graph, at its end."""
        self._core.cancel()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Times every run in the block; at its end the list has nanoseconds of each fused step."""
        times, all_times = list[int](), list[int]()
        try:
            with self._core.timed() as all_times:
                yield times
        finally:
            times += all_times[: len(self.running_plan.steps)]


class CudaDraft:
    """The draft of a plan: the last steps of its program, over pages of their own."""

    def __init__(self, core: _Core, plan: Plan, running_plan: Plan) -> None:
        self.running_plan = running_plan
        self._core = core
        self._plan = plan

    def new_state(self, n_pages: int) -> CudaState:
        """An empty cache of `n_pages` pages."""
        return CudaState(self._core.device, self._plan, n_pages, self._core.kv_type)

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Runs steps of the fused draft and returns a view of the last value, valid until the next run."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        n_before = len(self._core.plan.steps) - len(self.running_plan.steps)
        return self._core.run(batch, state, self._plan, n_before + first, n_before + last)

    def rank(self, batch: Batch, state: State, n: int, first: int = 0, meanwhile: Meanwhile = None) -> Ranking:
        """Runs steps to the end, and ranks the logits on the GPU; all that it gives is valid until the next run."""
        first, last = checked_range(first, None, len(self.running_plan.steps))
        n_before = len(self._core.plan.steps) - len(self.running_plan.steps)
        return self._core.rank(batch, state, self._plan, n_before + first, n_before + last, n, meanwhile)


class CudaBackend:
    """Kernels for NVIDIA GPUs. Opens the driver when it is first asked for something."""

    name = "cuda"

    def __init__(self, open: Callable[..., Device] = open_device, level: Callable[[], str] = find_level) -> None:
        self._open = open
        self._level = level

    @property
    def levels(self) -> list[str]:
        """The generation of the GPU; none if there is no GPU."""
        try:
            return [self._level()]
        except (DeviceError, RequestError):
            return []

    def is_available(self) -> bool:
        """Whether there are a driver, a GPU that is new enough, and kernels for it."""
        return bool(self.levels)

    def open(self, number: int | None = None) -> Device:
        """The GPU of that number; None: the first."""
        return self._open() if number is None else self._open(number)

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> CudaProgram:
        """Memory of all weights is set aside; they are uploaded by `load_weights` or by the first run.

        `options.device` names the GPU; without it the first is taken.
        """
        numbers = (None,) if options.device is None else parse_devices(options.device)
        if len(numbers) != 1:
            raise RequestError(f"device is {options.device!r}, but one GPU was expected here", field="device")
        return self.compile_on(self.open(*numbers), plan, tensors, options)

    def compile_on(self, device: Device, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> CudaProgram:
        """The program on an open device, which is the program's from here on."""
        try:
            return CudaProgram(device, plan, tensors, options)
        except BaseException:
            device.close()
            raise
