"""Reference backend: slow NumPy code in f32 that verifies the other backends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_info, threadpool_limits

from woolly.errors import PlanError, RequestError, UnsupportedError
from woolly.gguf import Tensor
from woolly.plan import Plan
from woolly.quant import can_dequantize
from woolly.runtime.batch import Batch
from woolly.runtime.options import Options
from woolly.runtime.program import About, CancelledRun, WeightStats, checked_range
from woolly.runtime.reference.ops import REFERENCE_OPS, OpContext
from woolly.runtime.reference.state import ReferenceState
from woolly.runtime.reference.weights import WeightStore
from woolly.runtime.state import State
from woolly.runtime.weight_views import WeightViews, check_weights

Float32 = npt.NDArray[np.float32]


class ReferenceProgram:
    """Program that executes the plan step by step."""

    def __init__(self, plan: Plan, weights: WeightStore, threads: int | None, max_rows: int) -> None:
        self.plan = self.running_plan = plan
        self.max_rows = max_rows
        self.about = About("reference", None, threads or _blas_threads(), 0)
        self.draft = None if plan.draft is None else ReferenceProgram(plan.draft, weights, threads, max_rows)
        self._weights = weights
        self._threads = threads
        self._times = [0] * len(plan.steps)  # nanoseconds
        self._values: dict[int, Float32] = {}
        self._is_cancelled = False
        self._last_use = {value: i for i, step in enumerate(plan.steps) for value in step.inputs}

    def load_weights(self) -> None:
        """Do nothing, because tensors are dequantized on first use."""

    def close(self) -> None:
        """Do nothing, because there is no background work."""

    def cancel(self) -> None:
        """Stop a run in progress at its next step. Any thread may call it."""
        self._is_cancelled = True

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> ReferenceState:
        """Return an empty cache in f32."""
        return ReferenceState(self.plan, n_pages, n_slots, window_pages)

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Time every run in the block. When it ends, the list has nanoseconds per step."""
        self._times = [0] * len(self._times)
        times: list[int] = []
        try:
            yield times
        finally:
            times += self._times

    def weight_stats(self) -> WeightStats:
        """Return the hits and misses of the dequantized tensors so far."""
        return self._weights.stats()

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps `first` to `last` (exclusive) and return the value of the last one."""
        if not isinstance(state, ReferenceState):
            raise PlanError("the state belongs to another program; create one with new_state")
        first, last = checked_range(first, last, len(self.plan.steps))
        if self.plan.slots:
            batch.check_slots(state.n_slots)
        if first == 0:
            self._values.clear()
        context = OpContext(self._weights, batch, state)
        self._is_cancelled = False  # set by `cancel` while nothing ran
        with self._thread_limit():
            for index in range(first, last):
                if self._is_cancelled:
                    raise CancelledRun("the computation was cancelled")
                start, step = time.perf_counter_ns(), self.plan.steps[index]
                if missing := [f"v{value}" for value in step.inputs if value not in self._values]:
                    raise PlanError(
                        f"step {index} needs {missing[0]}, which no earlier run computed; start at an earlier step"
                    )
                inputs = [self._values[value] for value in step.inputs]
                outputs = REFERENCE_OPS[step.op](context, step, *inputs)
                self._values |= zip(step.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True)
                for value in step.inputs:
                    if self._last_use[value] == index and value not in step.outputs:
                        self._values.pop(value, None)
                self._times[index] += time.perf_counter_ns() - start
        return self._values[self.plan.steps[last - 1].outputs[-1]]

    def _thread_limit(self) -> AbstractContextManager[object]:
        return nullcontext() if self._threads is None else threadpool_limits(self._threads, user_api="blas")


def _blas_threads() -> int:
    """Return the threads that NumPy's matrix products use unless they are limited."""
    return max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


class ReferenceBackend:
    """NumPy in f32. Weights are dequantized on first use."""

    name = "reference"
    is_gpu = False
    levels = ()

    def is_available(self) -> bool:
        """True, because NumPy is a dependency."""
        return True

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> ReferenceProgram:
        """Compile the plan. Weights are read when a step needs them."""
        if options.kv_type not in (None, "f32"):
            raise RequestError(f"kv_type is {options.kv_type!r}, but the reference backend supports only f32")
        if options.level is not None:
            raise RequestError(f"kernel level {options.level!r} is not supported: the reference backend has no levels")
        drafted = {} if plan.draft is None else plan.draft.weights
        for weight in (*plan.weights.values(), *drafted.values()):
            if not can_dequantize(weight.type):
                raise UnsupportedError(f"tensor {weight.name!r} is {weight.type.name}, which is not supported yet")
        views = WeightViews(tensors)
        for one in (plan, plan.draft):
            if one is not None:
                check_weights(one, views)
        store = WeightStore(views, options.weight_memory)
        options.reject_gpu_layers(self.name)
        return ReferenceProgram(plan, store, options.threads, options.rows())
