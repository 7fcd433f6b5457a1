"""ObservedProgram: runs a plan on the CPU and yields the input rows of each weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from woolly.plan.passes import fuse_attention, merge_linears
from woolly.runtime.cpu.program import CpuProgram
from woolly.runtime.reference.moe import expert_rows
from woolly.runtime.reference.ops import OpContext
from woolly.runtime.reference.state import ReferenceState
from woolly.runtime.reference.weights import WeightStore
from woolly.runtime.weight_views import WeightViews

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan, Step
    from woolly.runtime.batch import Batch
    from woolly.runtime.options import Options
    from woolly.runtime.state import State

# Norms, gates and residuals stay separate steps, so that the inputs of all linears are available.
_PASSES = (fuse_attention, merge_linears)
# Bytes of experts cached in f32 during a batch.
_EXPERT_MEMORY = 1 << 30


@dataclass(frozen=True)
class SeenRows:
    """Input rows of one matrix."""

    tensor: str
    matrix: int  # expert or head; 0 if the tensor is one matrix
    n_matrices: int
    x: npt.NDArray[np.float32]  # (rows, columns), valid until the next one


class ActivationObserver:
    """Compiled plan whose runs yield the inputs of its matrices."""

    def __init__(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options, names: str = "") -> None:
        """Observe matrices whose names begin with `names`. A run ends after the last of them."""
        self._program = CpuProgram(plan, tensors, options, _PASSES)
        self._weights = WeightStore(WeightViews(tensors), _EXPERT_MEMORY)
        self._state = ReferenceState(plan, 0)
        self._steps = [
            (index, step)
            for index, step in enumerate(self._program.running_plan.steps)
            if any(weight.tensor.startswith(names) for weight in step.matrices)
        ]

    def new_state(self, n_pages: int, n_slots: int) -> State:
        """Return an empty cache, for `observe`."""
        return self._program.new_state(n_pages, n_slots)

    def observe(self, batch: Batch, state: State) -> Iterator[SeenRows]:
        """Run a batch and yield the rows of each matrix, step by step.

        The bits do not depend on the number of threads.
        """
        done = 0
        for index, step in self._steps:
            if done < index:
                self._program.run(batch, state, done, index)
                done = index
            inputs = [self._program.value(batch, value) for value in step.inputs]
            if step.op == "moe":
                yield from self._experts(batch, step, inputs)
            elif step.op == "linears":
                for name in dict.fromkeys(weight.tensor for weight in step.matrices):
                    yield SeenRows(name, 0, 1, inputs[0])
            elif step.op == "linear_id":  # for text; the other matrix is for image rows
                yield SeenRows(step.matrices[0].tensor, 0, 1, inputs[0])
            elif step.op == "per_head_linear":
                (weight,) = step.matrices
                n, _, width = weight.shape
                for head in range(n):
                    yield SeenRows(weight.tensor, head, n, inputs[0][:, head * width : (head + 1) * width])

    def _experts(self, batch: Batch, step: Step, inputs: list[npt.NDArray[np.float32]]) -> Iterator[SeenRows]:
        context = OpContext(self._weights, batch, self._state)
        routed = inputs[1] if len(inputs) > 1 else inputs[0]
        for weight in step.by_role("router"):
            yield SeenRows(weight.tensor, 0, 1, routed)
        first, last = step.by_role("gate", "up"), step.by_role("down")
        with threadpool_limits(1, user_api="blas"):  # the order of summation depends on the number of threads
            for own in expert_rows(context, step, inputs[0], routed):
                for weights, x in ((first, own.x), (last, own.hidden)):
                    for name, n in {weight.tensor: weight.shape[0] for weight in weights}.items():
                        yield SeenRows(name, own.expert, n, x)
