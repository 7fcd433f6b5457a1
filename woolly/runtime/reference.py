"""The reference backend: NumPy in f32. Slow but right: the oracle of everything fast."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from woolly.errors import PlanError, RequestError, UnsupportedError
from woolly.gguf import Tensor
from woolly.plan import Plan
from woolly.runtime.batch import Batch
from woolly.runtime.cancelled import CancelledRun
from woolly.runtime.options import Options
from woolly.runtime.reference_fused import FUSED_OPS
from woolly.runtime.reference_moe import apply_moe
from woolly.runtime.reference_ops import PLAIN_OPS, Context
from woolly.runtime.state import State
from woolly.runtime.weights import WeightStats, WeightStore

__all__ = ["REFERENCE_OPS", "ReferenceBackend", "ReferenceProgram"]

Float32 = npt.NDArray[np.float32]

REFERENCE_OPS = {**PLAIN_OPS, "moe": apply_moe, **FUSED_OPS}


class ReferenceProgram:
    """Walks the plan step by step."""

    def __init__(self, plan: Plan, weights: WeightStore, threads: int | None, max_rows: int) -> None:
        self.plan = plan
        self.max_rows = max_rows
        self._weights = weights
        self._threads = threads
        self._values: dict[int, Float32] = {}
        self._is_cancelled = False
        self._last_use = {value: i for i, step in enumerate(plan.steps) for value in step.inputs}

    def prepare(self) -> None:
        """Nothing: tensors are dequantized when they are first used."""

    def close(self) -> None:
        """Nothing to end."""

    def cancel(self) -> None:
        """Stops a run that is under way, at its next step; may be called from any thread."""
        self._is_cancelled = True

    def new_state(self, n_pages: int) -> State:
        """An empty cache in f32."""
        return State(self.plan, n_pages, np.float32)

    def weight_stats(self) -> WeightStats:
        """What the weight store did so far."""
        return self._weights.stats()

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Steps `first` to `last` (exclusive); gives the value of the last step run."""
        last = len(self.plan.steps) if last is None else last
        if not 0 <= first < last <= len(self.plan.steps):
            raise PlanError(f"steps {first} to {last} are not a part of a plan of {len(self.plan.steps)} steps")
        if first == 0:
            self._values.clear()
        context = Context(self._weights, batch, state)
        self._is_cancelled = False  # of a call when nothing ran
        with self._thread_limit():
            for index in range(first, last):
                if self._is_cancelled:
                    raise CancelledRun("the computation was cancelled")
                step = self.plan.steps[index]
                if missing := [f"v{value}" for value in step.inputs if value not in self._values]:
                    raise PlanError(f"step {index} needs {missing[0]}, which no earlier run left; start further ahead")
                inputs = [self._values[value] for value in step.inputs]
                outputs = REFERENCE_OPS[step.op](context, step, *inputs)
                self._values |= zip(step.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True)
                for value in step.inputs:
                    if self._last_use[value] == index and value not in step.outputs:
                        self._values.pop(value, None)
        return self._values[self.plan.steps[last - 1].outputs[-1]]

    def _thread_limit(self) -> AbstractContextManager[object]:
        return nullcontext() if self._threads is None else threadpool_limits(self._threads, user_api="blas")


class ReferenceBackend:
    """NumPy in f32, weights dequantized on first use."""

    name = "reference"

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> ReferenceProgram:
        """Nothing is computed yet: weights are read when a step needs them."""
        if options.kv_type not in (None, "f32"):
            raise RequestError(f"kv_type is {options.kv_type!r}, but the reference backend keeps f32")
        if options.level is not None:
            raise RequestError(f"kernel level {options.level!r} was asked for, but the reference backend has none")
        for weight in plan.weights.values():
            if not weight.type.can_dequantize:
                raise UnsupportedError(f"tensor {weight.name!r} is {weight.type.name}, which is not supported yet")
        store = WeightStore(tensors, options.weight_memory)
        return ReferenceProgram(plan, store, options.threads, options.max_rows)
