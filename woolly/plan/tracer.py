"""The Tracer: what a model file talks to. It checks shapes as it goes and writes down the steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from woolly.errors import ModelError, PlanError
from woolly.gguf import GGMLType
from woolly.plan.ops import OPS
from woolly.plan.plan import Attribute, CacheLayer, Plan, Rows, Step, Value, Weight
from woolly.plan.rope import Rope

__all__ = ["Handle", "TensorLike", "Tracer"]

# A weight that every model may carry without a step of its own.
_ROPE_DIVISORS = "rope_freqs.weight"


class TensorLike(Protocol):
    """What the tracer needs to know of a tensor of the file."""

    @property
    def type(self) -> GGMLType:
        """Storage type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost dimension first."""


@dataclass(frozen=True, eq=False)
class Handle:
    """A value in a model file. `a + b` and `x * 0.22` are steps too."""

    value: Value
    tracer: Tracer

    @property
    def width(self) -> int:
        """Columns of the matrix that this stands for."""
        return self.value.width

    def __add__(self, other: Handle) -> Handle:
        return self.tracer.add(self, other)

    def __mul__(self, factor: float) -> Handle:
        return self.tracer.scale(self, factor)


class Tracer:
    """Writes down the steps of one model over the tensors of one file."""

    def __init__(self, architecture: str, tensors: Mapping[str, TensorLike]) -> None:
        self._architecture = architecture
        self._tensors = tensors
        self._scope: tuple[str, ...] = ()
        self._steps: list[Step] = []
        self._values: list[Value] = []
        self._cache: list[CacheLayer] = []
        self._output: Handle | None = None

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Weight names inside are prefixed with `name.`."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield
        finally:
            self._scope = outer

    def rows(self, name: str) -> int:
        """Rows of the matrix `name`."""
        return self._matrix(name).shape[0]

    def has(self, name: str) -> bool:
        """Whether the file holds `name.weight` in the present scope."""
        return self._full(name, "weight") in self._tensors

    def embed(self, table: str, *, width: int) -> Handle:
        """The row of `table` for each token of the batch."""
        weight = self._matrix(table)
        if weight.shape[1] != width:
            self._fail(f"{weight.name} has {weight.shape[1]} columns, but the metadata says {width}")
        return self._step("embed", (), "batch", weight.shape[1], (weight,))

    def rms_norm(self, x: Handle, name: str, *, eps: float) -> Handle:
        """Each group of len(weight) columns divided by its root mean square, times the weight."""
        weight = self._vector(name, "weight")
        if x.width % weight.shape[0] != 0:
            self._fail(f"{weight.name} has {weight.shape[0]} elements, which do not divide the width {x.width}")
        return self._step("rms_norm", (x,), x.value.rows, x.width, (weight,), eps=float(eps))

    def linear(self, x: Handle, name: str, *, width: int) -> Handle:
        """X times the weight transposed, plus `name.bias` where the file has one; `width` is that of the result."""
        weight = self._matrix(name)
        rows, columns = weight.shape
        if rows != width:
            self._fail(f"{weight.name} has {rows} rows, but the metadata says {width}")
        if columns != x.width:
            self._fail(f"{weight.name} has {columns} columns, but its input is {x.width} wide")
        return self._step("linear", (x,), x.value.rows, rows, (weight, *self._bias(name, weight)))

    def rope(self, x: Handle, rope: Rope) -> Handle:
        """Each head turned by its token's position; Llama 3's divisors are used where the file has them."""
        if x.width % rope.head_dim != 0:
            self._fail(f"rope turns heads of {rope.head_dim}, which do not divide the width {x.width}")
        if not 0 < rope.n_rot <= rope.head_dim or rope.n_rot % 2 != 0:
            self._fail(f"rope turns {rope.n_rot} of {rope.head_dim} elements; an even part of the head was expected")
        weights: tuple[Weight, ...] = ()
        if _ROPE_DIVISORS in self._tensors:
            divisors = self._weight(_ROPE_DIVISORS)
            if divisors.shape != (rope.n_rot // 2,):
                self._fail(f"{_ROPE_DIVISORS} has shape {divisors.shape}, expected ({rope.n_rot // 2},)")
            weights = (divisors,)
        return self._step("rope", (x,), x.value.rows, x.width, weights, rope=rope)

    def attention(
        self,
        q: Handle,
        k: Handle,
        v: Handle,
        *,
        layer: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Handle:
        """K and v stored in the cache of `layer`, then causal attention of q over it.

        A window of n sees the n latest positions, its own included; 0 sees all. A softcap of c
        bounds the scores by c * tanh(score / c); 0 leaves them.
        """
        if k.width != v.width or k.width % head_dim != 0:
            self._fail(f"attention got k of width {k.width} and v of {v.width}; equal multiples of {head_dim} expected")
        if q.width % k.width != 0:
            self._fail(f"attention got q of width {q.width}, which is no multiple of the k width {k.width}")
        if layer != len(self._cache):
            self._fail(f"attention names layer {layer}, but layer {len(self._cache)} comes next")
        self._cache.append(CacheLayer(k.width // head_dim, head_dim))
        return self._step(
            "attention",
            (q, k, v),
            "batch",
            q.width,
            layer=layer,
            head_dim=head_dim,
            scale=float(scale),
            window=window,
            softcap=float(softcap),
        )

    def swiglu(self, gate: Handle, up: Handle) -> Handle:
        """silu(gate) * up."""
        self._same_shape("swiglu", gate, up)
        return self._step("swiglu", (gate, up), gate.value.rows, gate.width)

    def moe(
        self,
        x: Handle,
        router: str,
        gate: str,
        up: str,
        down: str,
        *,
        n_experts: int,
        ffn: int,
        n_used: int,
        scoring: Literal["softmax", "sigmoid"] = "softmax",
        normalize: bool = False,
        weights_scale: float = 1.0,
    ) -> Handle:
        """Each row through the `n_used` experts that its router scores highest, the lower index where scores are equal.

        An expert gives down(silu(gate x) * up x). Its weight is its score, softmax or sigmoid over all experts,
        divided by the sum over the chosen ones with `normalize`, then times `weights_scale`.
        """
        if not 1 <= n_used <= n_experts:
            self._fail(f"moe uses {n_used} of {n_experts} experts; at least 1 and at most all were expected")
        if scoring not in ("softmax", "sigmoid"):
            self._fail(f"moe got scoring {scoring!r}; softmax or sigmoid was expected")
        weight = self._matrix(router)
        if weight.shape != (n_experts, x.width):
            self._fail(f"{weight.name} has shape {weight.shape}, expected ({n_experts}, {x.width})")
        bias = self._bias(router, weight)
        experts = [self._weight(self._full(name, "weight")) for name in (gate, up, down)]
        inner, outer = (n_experts, ffn, x.width), (n_experts, x.width, ffn)
        for expert, shape in zip(experts, (inner, inner, outer), strict=True):
            if expert.shape != shape:
                self._fail(f"{expert.name} has shape {expert.shape}, expected {shape}: experts, rows, columns")
        return self._step(
            "moe",
            (x,),
            x.value.rows,
            x.width,
            (weight, *bias, *experts),
            roles=" ".join(("router", *("bias" for _ in bias), "gate", "up", "down")),
            n_used=n_used,
            scoring=scoring,
            normalize=bool(normalize),
            weights_scale=float(weights_scale),
            eps=0.0,
            scale=1.0,
            epilogue="none",
        )

    def add(self, a: Handle, b: Handle) -> Handle:
        """A + b."""
        self._same_shape("add", a, b)
        return self._step("add", (a, b), a.value.rows, a.width)

    def scale(self, x: Handle, factor: float) -> Handle:
        """X times a constant."""
        return self._step("scale", (x,), x.value.rows, x.width, factor=float(factor))

    def output_rows(self, x: Handle) -> Handle:
        """Only the rows whose logits are wanted."""
        return self._step("output_rows", (x,), "output", x.width)

    def output(self, logits: Handle) -> None:
        """Names the result of the plan."""
        if self._output is not None:
            self._fail("output was named twice")
        if logits.value.id != len(self._values) - 1:
            self._fail("output must be the value of the last step")
        self._output = logits

    def plan(self) -> Plan:
        """The finished plan. A tensor of the file that no step reads is an error: nothing is silently ignored."""
        if self._output is None:
            raise PlanError(f"the {self._architecture} model file names no output")
        plan = Plan(self._architecture, tuple(self._steps), tuple(self._values), tuple(self._cache))
        used = plan.weights
        unused = [name for name in self._tensors if name not in used and name != _ROPE_DIVISORS]
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise ModelError(
                f"the file holds tensors that Woolly's {self._architecture} model does not use"
                f" ({', '.join(unused[:3])}{more}), so its results would be wrong"
            )
        return plan

    def _step(
        self,
        op: str,
        inputs: tuple[Handle, ...],
        rows: Rows,
        width: int,
        weights: tuple[Weight, ...] = (),
        **attributes: Attribute,
    ) -> Handle:
        n_inputs = sum(not name.endswith("?") for name in OPS[op].inputs)
        if set(attributes) != set(OPS[op].attributes) or len(inputs) != n_inputs:
            self._fail(f"{op} was built with other inputs or attributes than the op table gives it")
        value = Value(len(self._values), width, rows)
        self._values.append(value)
        ids = tuple(handle.value.id for handle in inputs)
        self._steps.append(Step(op, ids, (value.id,), weights, tuple(attributes.items()), self._model_line()))
        return Handle(value, self)

    def _full(self, name: str, kind: str) -> str:
        return ".".join((*self._scope, name, kind))

    def _weight(self, full_name: str) -> Weight:
        tensor = self._tensors.get(full_name)
        if tensor is None:
            raise ModelError(
                f"tensor {full_name} is missing, which the {self._architecture} model needs ({self._model_line()})"
            )
        return Weight(full_name, tensor.type, tensor.shape)

    def _matrix(self, name: str) -> Weight:
        weight = self._weight(self._full(name, "weight"))
        if len(weight.shape) != 2:
            self._fail(f"{weight.name} has shape {weight.shape}, a matrix was expected")
        return weight

    def _vector(self, name: str, kind: str) -> Weight:
        weight = self._weight(self._full(name, kind))
        if len(weight.shape) != 1:
            self._fail(f"{weight.name} has shape {weight.shape}, a vector was expected")
        return weight

    def _bias(self, name: str, weight: Weight) -> tuple[Weight, ...]:
        """`name.bias`, where the file has one for the matrix."""
        if self._full(name, "bias") not in self._tensors:
            return ()
        bias = self._vector(name, "bias")
        if bias.shape != weight.shape[:1]:
            self._fail(f"{bias.name} has {bias.shape[0]} elements, but {weight.name} has {weight.shape[0]} rows")
        return (bias,)

    def _same_shape(self, op: str, a: Handle, b: Handle) -> None:
        if (a.width, a.value.rows) != (b.width, b.value.rows):
            self._fail(f"{op} got {a.value.rows} x {a.width} and {b.value.rows} x {b.width}")

    def _fail(self, message: str) -> NoReturn:
        raise PlanError(f"{self._model_line()}: {message}")

    @staticmethod
    def _model_line() -> str:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
