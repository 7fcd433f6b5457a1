"""NativeSteps: a memory-planned plan registered with native code, step by step, with its weights.

There is no code per op here: values, weights by role and attributes are passed by name, and the native op rejects
unknown ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import MemoryMap, Tensor
from woolly.plan.passes.plan_memory import ArenaLayout, barriers
from woolly.runtime.cpu.stale_build import advice_if_old
from woolly.runtime.weight_views import RowView, WeightViews

if TYPE_CHECKING:
    from woolly import _native
    from woolly.plan import Plan, Step
    from woolly.runtime.rope_tables import RopeTables


class NativeSteps:
    """Steps registered with a native program: ids of values and matrices, and references to their arrays."""

    def __init__(
        self, native: _native.Program, plan: Plan, layout: ArenaLayout, tensors: WeightViews, rope_tables: RopeTables
    ) -> None:
        self._native = native
        self._plan = plan
        self._tensors = tensors
        self._rope_tables = rope_tables
        self._kept: list[object] = []  # arrays that native code has pointers to
        self._vectors: dict[str, int] = {}
        self.matrices: dict[str, list[int]] = {}  # by tensor: one, or one per expert
        self.values: dict[int, int] = {}
        for value in sorted(layout.offsets):
            shape = plan.values[value]
            self.values[value] = native.add_value(layout.offsets[value], shape.width, shape.rows == "output")
        for step, wait in zip(plan.steps, barriers(plan, layout), strict=True):
            self._add(step, wait)

    def uses(self) -> list[tuple[int, str, list[int]]]:
        """(step, tensor, matrices) of every weight that is used as packed panels, in order of use."""
        return [
            (index, weight.name, self.matrices[weight.name])
            for index, step in enumerate(self._plan.steps)
            for weight in step.matrices
        ]

    def _add(self, step: Step, wait: bool) -> None:
        inputs, outputs = ([self.values[v] for v in values] for values in (step.inputs, step.outputs))
        rows = (*step.kind.matrices, *step.kind.tables)
        weights = [
            (role, self._matrices(weight.name) if role in rows else [self._vector(weight.name)])
            for role, weight in zip(step.roles, step.weights, strict=True)
        ]
        try:
            self._native.add_step(step.op, inputs, outputs, weights, self._attributes(step), wait)
        except ValueError as error:
            raise UnsupportedError(f"{step.source}: {error}{advice_if_old()}") from None
        except TypeError as error:
            text = f"{step.source}: {step.op} has a number that native code cannot hold"
            raise ModelError(text + advice_if_old()) from error

    def _matrices(self, name: str) -> list[int]:
        """Return the matrices of a tensor.

        Each expert is a separate matrix. Panels then never span two experts, and file pages are released expert by
        expert. Otherwise one unused expert would keep the pages of all.
        """
        if name not in self.matrices:
            data = self._tensors[name].data
            experts = data if len(self._tensors[name].shape) == 3 else [data]
            self.matrices[name] = [self._add_matrix(name, expert) for expert in experts]
        return self.matrices[name]

    def _add_matrix(self, name: str, data: npt.NDArray[np.uint8]) -> int:
        tensor = self._tensors[name]
        rows, columns = (1, *tensor.shape)[-2:]
        source = data.reshape(-1)
        self._kept.append(source)
        own = tensor.tensor if isinstance(tensor, RowView) else tensor
        # Dropped pages of a file are read again; dropped anonymous pages would be zeros.
        mapped = isinstance(own, Tensor) and not isinstance(own.file, MemoryMap)
        try:
            return self._native.add_matrix(int(tensor.type), rows, columns, source, mapped)
        except ValueError as error:
            raise UnsupportedError(
                f"tensor {name!r} is {tensor.type.name}, which is not supported yet: {error}"
            ) from None

    def _vector(self, name: str) -> int:
        if name not in self._vectors:
            array = np.ascontiguousarray(self._tensors[name].dequantize()).reshape(-1)
            self._kept.append(array)
            self._vectors[name] = self._native.add_vector(array)
        return self._vectors[name]

    def _attributes(self, step: Step) -> dict[str, int | float | str]:
        """Return the attributes as plain numbers and strings. `RopeTables` has the other values of a rope."""
        out: dict[str, int | float | str] = {}
        for name, value in step.attributes:
            if name == "rope":
                rope = step.rope()
                if rope is not None:
                    out["head_dim"] = rope.head_dim
                out["n_rot"] = 0 if rope is None else rope.n_rot
                out["adjacent"] = int(rope is not None and rope.style == "adjacent")
                out["rope_column"] = self._rope_tables.column(step)
            elif name != "roles":
                assert isinstance(value, (int, float, str))
                out[name] = int(value) if isinstance(value, bool) else value
        return out
