"""Recorder: values, weights and steps of a model while it is traced. Ops are methods that call `_step`."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from woolly.errors import ModelError, PlanError
from woolly.plan.ops.table import OPS
from woolly.plan.plan import Attribute, Plan, Pooling, Result, Rows, Step, Value, Weight

if TYPE_CHECKING:
    from woolly.plan.state import Paged, Slot
    from woolly.plan.tracer import Tracer
    from woolly.quant import GGMLType

# Tensors that text models do not read: vision and audio encoders in the same file, and scales for int8 hardware.
_TOWERS = ("v.", "mm.", "a.")
_AUDIO = ("a.", "mm.a.")  # the audio encoder next to a vision encoder
_SIDECAR = ".input_scale"
# Frames of this folder are not part of a model file.
_HERE = str(Path(__file__).parent)


class TensorLike(Protocol):
    """Type and shape of a tensor of the file."""

    @property
    def type(self) -> GGMLType:
        """Storage type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost dimension first."""


@dataclass(frozen=True)
class Vector:
    """A vector weight shared by all rows."""

    weight: Weight


@dataclass(frozen=True, eq=False)
class Handle:
    """Value in a model file. `a + b` and `x * 0.22` add steps, too."""

    value: Value
    tracer: Tracer

    @property
    def width(self) -> int:
        """Columns of the value."""
        return self.value.width

    def __add__(self, other: Handle | Vector) -> Handle:
        if isinstance(other, Vector):
            return self.tracer.add_weight(self, other.weight)
        return self.tracer.add(self, other)

    def __sub__(self, other: Handle) -> Handle:
        return self + other * -1.0

    def __mul__(self, other: Handle | Vector | float) -> Handle:
        if isinstance(other, Vector):
            return self.tracer.mul_weight(self, other.weight)
        return self.tracer.mul(self, other) if isinstance(other, Handle) else self.tracer.scale(self, other)


class Recorder:
    """Steps of one model traced so far, over the tensors of one file."""

    def __init__(
        self,
        architecture: str,
        tensors: Mapping[str, TensorLike],
        pooling: Pooling | None = None,
        is_tower: bool = False,
        ignored: tuple[str, ...] | None = None,
        state: tuple[Paged | Slot, ...] = (),
    ) -> None:
        """`is_tower`: trace a vision or audio encoder, whose tensors a text model skips.

        `ignored` lists name prefixes of tensors that need not be read; None: tensors of the encoders, or of the audio
        encoder. `state` is the state of the main model, for drafts that read it.
        """
        self._ignored = ignored if ignored is not None else _AUDIO if is_tower else _TOWERS
        self.pooling = pooling  # requested pooling of embeddings; None: default of the model, or logits
        self._architecture = architecture
        self._tensors = tensors
        self._scope: tuple[str, ...] = ()
        self._steps: list[Step] = []
        self._values: list[Value] = []
        self._state: list[Paged | Slot] = list(state)
        self._skipped: tuple[str, ...] = ()
        self._output: Handle | None = None
        self._result: tuple[Result, Pooling | None] = ("logits", None)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix weight names in the block with `name.`."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield
        finally:
            self._scope = outer

    def rows(self, name: str) -> int:
        """Return the rows of the matrix `name`, 1 for a vector."""
        return self._row(name).shape[0]

    def columns_of(self, name: str) -> int:
        """Return the columns of the matrix `name`."""
        return self._row(name).shape[1]

    def has(self, name: str) -> bool:
        """True if the file has `name.weight`, or `name` itself, in the current scope."""
        return self._full(name) in self._tensors

    def skip(self, *names: str) -> None:
        """Declare tensors, or blocks such as "blk.47", that this model never reads."""
        self._skipped += tuple(".".join((*self._scope, name)) for name in names)

    def output(self, value: Handle, result: Result = "logits", pooling: Pooling | None = None) -> None:
        """Set the result of the plan, its kind and its pooling."""
        if self._output is not None:
            self._fail("output() was called twice")
        if value.value.id != len(self._values) - 1:
            self._fail("output must be the value of the last step")
        self._output = value
        self._result = (result, pooling)

    def plan(self, block: str = "") -> Plan:
        """Return the finished plan. A tensor of the file that no step reads is an error.

        With a `block` ("blk.47"), the plan is for a draft, and only the tensors of that block must be read.
        """
        if self._output is None:
            raise PlanError(f"the {self._architecture} model file does not call output()")
        plan = Plan(self._architecture, tuple(self._steps), tuple(self._values), tuple(self._state), *self._result)
        used = {weight.tensor for weight in plan.weights.values()}
        within = f"{block}." if block else ""
        unused = [
            name
            for name in self._tensors
            if name.startswith(within) and name not in used and not self._is_skipped(name)
        ]
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise ModelError(
                f"the file holds tensors that Woolly's {self._architecture} model does not use"
                f" ({', '.join(unused[:3])}{more}), so its results would be wrong"
            )
        for name in dict.fromkeys(w.tensor for w in plan.weights.values() if w.tensor != w.name):
            read = sum(math.prod(w.shape) for w in plan.weights.values() if w.tensor == name)
            if read != math.prod(self._tensors[name].shape):
                raise ModelError(
                    f"{name} has rows that Woolly's {self._architecture} model does not use, so its results would be"
                    " wrong"
                )
        return plan

    def _is_skipped(self, tensor: str) -> bool:
        return (
            tensor in self._skipped
            or tensor.startswith((*self._ignored, *(f"{name}." for name in self._skipped)))
            or tensor.endswith(_SIDECAR)
        )

    def _step(
        self,
        op: str,
        inputs: tuple[Handle, ...],
        rows: Rows,
        width: int,
        weights: tuple[Weight, ...] = (),
        **attributes: Attribute,
    ) -> Handle:
        row = OPS[op]
        n_inputs = sum(not name.endswith("?") for name in row.inputs)
        fits = n_inputs <= len(inputs) <= len(row.inputs)
        if set(attributes) != {name.rstrip("?") for name in row.attributes} or not fits:
            self._fail(f"{op} was built with other inputs or attributes than its row in the op table names")
        value = Value(len(self._values), width, rows)
        self._values.append(value)
        ids = tuple(handle.value.id for handle in inputs)
        self._steps.append(Step(op, ids, (value.id,), weights, tuple(attributes.items()), self._model_line()))
        return Handle(value, cast("Tracer", self))

    def _full(self, name: str) -> str:
        """Return the tensor's name in the file: `name.weight`, else `name`. A leading "/" ignores scopes."""
        full = name[1:] if name.startswith("/") else ".".join((*self._scope, name))
        return full if full in self._tensors and f"{full}.weight" not in self._tensors else f"{full}.weight"

    def _weight(self, name: str) -> Weight:
        full = self._full(name)
        tensor = self._tensors.get(full)
        if tensor is None:
            raise ModelError(
                f"tensor {full} is missing, which the {self._architecture} model needs ({self._model_line()})"
            )
        return Weight(full, tensor.type, tensor.shape)

    def _matrix(self, name: str) -> Weight:
        weight = self._weight(name)
        if len(weight.shape) != 2:
            self._fail(f"{weight.name} has shape {weight.shape}, but a matrix is expected")
        return weight

    def _row(self, name: str) -> Weight:
        """Return a matrix. A vector counts as one row."""
        weight = self._weight(name)
        return Weight(weight.name, weight.type, (1, *weight.shape)) if len(weight.shape) == 1 else self._matrix(name)

    def _vector(self, name: str) -> Weight:
        weight = self._weight(name)
        if len(weight.shape) != 1:
            self._fail(f"{weight.name} has shape {weight.shape}, but a vector is expected")
        return weight

    def _flat(self, name: str) -> Weight:
        """Return a tensor as a flat vector."""
        weight = self._weight(name)
        return Weight(weight.name, weight.type, (math.prod(weight.shape),))

    def _bias(self, name: str, weight: Weight) -> tuple[Weight, ...]:
        """Return `name.bias`, if the file has one for the matrix or the experts' matrices."""
        if not self.has(f"{name}.bias"):
            return ()
        bias = self._weight(f"{name}.bias")
        if bias.shape != weight.shape[:-1]:
            have = f"{bias.shape[0]} elements" if len(bias.shape) == 1 else f"shape {bias.shape}"
            self._fail(f"{bias.name} has {have}, but {weight.name} has {weight.shape[-2]} rows")
        return (bias,)

    def _view(self, weight: Weight, first: int, n: int, axis: int) -> Weight:
        """Return rows [first, first + n) of a weight. `axis` is the axis of the rows."""
        if first + n > weight.shape[axis]:
            self._fail(f"{weight.name} has {weight.shape[axis]} rows, but rows {first} to {first + n} are expected")
        shape = list(weight.shape)
        shape[axis] = n
        return Weight(f"{weight.name}[{first}:{first + n}]", weight.type, tuple(shape))

    def _same_shape(self, op: str, a: Handle, b: Handle) -> None:
        if (a.width, a.value.rows) != (b.width, b.value.rows):
            self._fail(f"{op} got {a.value.rows} x {a.width} and {b.value.rows} x {b.width}")

    def _limit(self, op: str, act: str, limit: float) -> float:
        if act == "clipped" and not limit > 0:
            self._fail(f"{op} got a limit of {limit:g} for {act}, which needs a positive one")
        if not limit >= 0 or (limit and act not in ("silu", "clipped")):
            self._fail(f"{op} got a limit of {limit:g} for {act}; expected 0, or a positive limit for silu")
        return float(limit)

    def _fail(self, message: str) -> NoReturn:
        raise PlanError(f"{message} ({self._model_line()})")

    @staticmethod
    def _model_line() -> str:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        return f"{_file_name(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.cache
def _file_name(path: str) -> str:
    """Return the name of a source file. It is cached, because the lookup took half of the tracing time."""
    return Path(path).name
