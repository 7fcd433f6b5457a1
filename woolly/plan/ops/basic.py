"""Ops of rows and elements: embedding, norms, linear, activations, sums and products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

from woolly.plan.ops.table import OPS, Cost, Load, Op, op
from woolly.plan.recorder import Handle, Recorder, Vector

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step, Weight

Gate = Literal["silu", "gelu", "gelu_erf", "relu", "clamped", "clipped"]
Act = Literal["silu", "gelu", "gelu_erf", "gelu_quick", "relu", "relu2", "sigmoid", "softplus", "tanh", "exp", "root"]

_PARTS = {"attn_output": "output", "ffn_gate": "gate, up", "ffn_up": "gate, up", "ffn_down": "down"}


def _linear_part(step: Step) -> str:
    """By the name of the first matrix."""
    name = step.matrices[0].tensor.removesuffix(".weight").rpartition(".")[2]
    if name.startswith("attn_") and name not in _PARTS:
        return "qkv"
    return _PARTS.get(name, "logits" if name in ("output", "token_embd") else "other")


def _lookup_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """One row of the table for each row of the batch."""
    (table,) = step.weights
    return Cost(load.total * table.type.row_bytes(table.shape[1]), 0)


class BasicOps(Recorder):
    """What a model file says of rows and elements."""

    @op(weights=("table",), tables=("table",), cost=_lookup_cost)
    def embed(self, table: str, *, width: int) -> Handle:
        """The row of `table` for each token of the batch."""
        weight = self._matrix(table)
        if weight.shape[1] != width:
            self._fail(f"{weight.name} has {weight.shape[1]} columns, but the metadata says {width}")
        return self._step("embed", (), "batch", weight.shape[1], (weight,))

    @op(weights=("norm?",), attributes=("eps",))
    def hidden(self, norm: str | None = None, *, eps: float = 0.0, width: int = 0) -> Handle:
        """The rows that the batch brings: those of a draft as they are, the model's own normed by the weight.

        A draft begins so; what it gives in turn is normed already. Without a norm all rows, of `width` columns, are as
        they are.
        """
        if norm is None and width < 1:
            self._fail(f"hidden without a norm needs the width of its rows, but got {width}")
        weights = () if norm is None else (self._vector(norm),)
        width = weights[0].shape[0] if weights else width
        return self._step("hidden", (), "batch", width, weights, eps=float(eps))

    @op(inputs=("x",), weights=("weight?",), attributes=("eps", "group?"), by_row=True)
    def rms_norm(self, x: Handle, name: str | None = None, *, eps: float, group: int = 0) -> Handle:
        """Each group of len(weight) columns divided by its root mean square, times the weight.

        Without a name there is no weight, and a group is `group` columns, 0 for the whole row.
        """
        weights = () if name is None else (self._vector(name),)
        length = weights[0].shape[0] if weights else group or x.width
        if x.width % length != 0:
            what = f"{weights[0].name} has {length} elements, which" if weights else f"groups of {length}"
            self._fail(f"{what} do not divide the width {x.width}")
        return self._step(
            "rms_norm", (x,), x.value.rows, x.width, weights, eps=float(eps), group=0 if weights else length
        )

    @op(inputs=("x",), weights=("weight?", "bias?"), attributes=("eps", "group"), by_row=True)
    def layer_norm(self, x: Handle, name: str | None = None, *, eps: float, group: int = 0) -> Handle:
        """Each group of columns minus its mean, divided by its deviation, times the weight, plus `name.bias`.

        A weight of n elements norms groups of n columns, one of (m, n) m groups with weights of their own. Without a
        name there is no weight, and a group is `group` columns, 0 for the whole row.
        """
        weights: tuple[Weight, ...] = ()
        group = group or x.width
        if x.width % group != 0:
            self._fail(f"groups of {group} do not divide the width {x.width}")
        if name is not None:
            weight = self._weight(name)
            group, n = weight.shape[-1], math.prod(weight.shape)
            if x.width % group != 0 or n not in (group, x.width):
                self._fail(f"{weight.name} has shape {weight.shape}, which does not divide the width {x.width}")
            weights = (weight, self._weight(f"{name}.bias")) if self.has(f"{name}.bias") else (weight,)
            if weights[-1].shape != weight.shape:
                self._fail(f"{weights[-1].name} has shape {weights[-1].shape}, expected {weight.shape}")
        return self._step("layer_norm", (x,), x.value.rows, x.width, weights, eps=float(eps), group=group)

    @op(inputs=("x",), weights=("weight", "bias?"), matrices=("weight",), part=_linear_part, by_row=True)
    def linear(self, x: Handle, name: str, *, width: int, first: int | None = None) -> Handle:
        """X times the weight transposed, plus `name.bias` if the file has one; `width` is that of the result.

        With `first` the weight is `width` rows of a matrix that holds several. A `name.scale` multiplies the result.
        """
        weight = self._row(name) if width == 1 else self._matrix(name)
        bias = self._bias(name, weight)
        if first is not None:
            weight, *rest = (self._view(w, first, width, 0) for w in (weight, *bias))
            bias = tuple(rest)
        rows, columns = weight.shape
        if rows != width:
            self._fail(f"{weight.name} has {rows} rows, but the metadata says {width}")
        if columns != x.width:
            self._fail(f"{weight.name} has {columns} columns, but its input is {x.width} wide")
        if not self.has(f"{name}.scale"):
            return self._step("linear", (x,), x.value.rows, rows, (weight, *bias))
        # The scale is the matrix's alone: what the bias adds comes after it.
        y = self.mul_weight(self._step("linear", (x,), x.value.rows, rows, (weight,)), f"{name}.scale")
        return self.add_weight(y, bias[0]) if bias else y

    @op(
        inputs=("x",),
        weights=("weight", "other"),
        matrices=("weight", "other"),
        rare=("other",),
        scratch=("activations",),
        part=_linear_part,
        by_row=True,
    )
    def linear_id(self, x: Handle, name: str, other: str, *, width: int) -> Handle:
        """X times one of two weights transposed: `Batch.gather_rows` has 0 or 1 for each row, without it 0.

        `width` is that of the result. The second is that of rows of images.
        """
        weights = self._matrix(name), self._matrix(other)
        for weight in weights:
            if weight.shape != (width, x.width):
                self._fail(f"{weight.name} has shape {weight.shape}, expected ({width}, {x.width})")
        return self._step("linear_id", (x,), x.value.rows, width, weights)

    @op(inputs=("x",), weights=("weight",), matrices=("weight",), scratch=("activations",), part="qkv", by_row=True)
    def per_head_linear(self, x: Handle, name: str, *, heads: int, width: int) -> Handle:
        """Each head of x times a matrix of its own, transposed; `width` is that of a head of the result.

        The matrices may be one tensor of three axes, or the rows of one matrix, one head's after another's.
        """
        weight = self._weight(name)
        columns = x.width // max(1, heads)
        if x.width % heads != 0 or weight.shape not in ((heads, width, columns), (heads * width, columns)):
            self._fail(
                f"{weight.name} has shape {weight.shape}; {heads} matrices of {width} rows and {x.width} / {heads}"
                " columns were expected"
            )
        return self._step("per_head_linear", (x,), x.value.rows, heads * width, (weight,))

    @op(inputs=("gate", "up"), attributes=("act", "limit?"), by_row=True)
    def glu(self, gate: Handle, up: Handle, act: Gate = "silu", *, limit: float = 0.0) -> Handle:
        """act(gate) * up; "clamped" is gpt-oss': both bounded by 7, gate * sigmoid(1.702 gate) * (up + 1).

        With a `limit` it is min(silu(gate), limit) times up, which is bounded by it on both sides; "clipped" bounds the
        gate before silu instead.
        """
        self._same_shape("glu", gate, up)
        if act not in get_args(Gate):
            self._fail(f"glu got the activation {act!r}; one of {', '.join(get_args(Gate))} was expected")
        return self._step("glu", (gate, up), gate.value.rows, gate.width, act=act, limit=self._limit("glu", act, limit))

    @op(inputs=("x",), attributes=("kind",), by_row=True)
    def unary(self, x: Handle, kind: Act) -> Handle:
        """An activation of each element; relu2 is relu squared.

        Gelu is its tanh form, gelu_erf the exact one, gelu_quick x * sigmoid(1.702 x). Root is the square root of the
        size, which counts as at least 1e-6, with the sign; that of 0 is 0.
        """
        if kind not in get_args(Act):
            self._fail(f"unary got the kind {kind!r}; one of {', '.join(get_args(Act))} was expected")
        return self._step("unary", (x,), x.value.rows, x.width, kind=kind)

    @op(inputs=("x",), attributes=("alpha_p", "alpha_n", "beta", "eps"), by_row=True)
    def xielu(self, x: Handle, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Handle:
        """Beta x, plus alpha_p x^2 above 0, plus alpha_n (expm1(min(x, eps)) - x) below."""
        return self._step(
            "xielu",
            (x,),
            x.value.rows,
            x.width,
            alpha_p=float(alpha_p),
            alpha_n=float(alpha_n),
            beta=float(beta),
            eps=float(eps),
        )

    @op(inputs=("x",), attributes=("cap",), by_row=True)
    def softcap(self, x: Handle, cap: float) -> Handle:
        """Cap * tanh(x / cap)."""
        if cap <= 0:
            self._fail(f"softcap got {cap:g}; a positive bound was expected")
        return self._step("softcap", (x,), x.value.rows, x.width, cap=float(cap))

    @op(inputs=("x",), attributes=("limit",), by_row=True)
    def clamp(self, x: Handle, limit: float) -> Handle:
        """X bounded by the limit on both sides."""
        if limit <= 0:
            self._fail(f"clamp got {limit:g}; a positive bound was expected")
        return self._step("clamp", (x,), x.value.rows, x.width, limit=float(limit))

    @op(inputs=("x",), attributes=("low", "high"), by_row=True)
    def clip(self, x: Handle, low: float, high: float) -> Handle:
        """X bounded from below and from above."""
        if not low < high:
            self._fail(f"clip got {low:g} to {high:g}; bounds in order were expected")
        return self._step("clip", (x,), x.value.rows, x.width, low=float(low), high=float(high))

    @op(inputs=("a", "b"), by_row=True)
    def mul(self, a: Handle, b: Handle) -> Handle:
        """A times b; a narrower b multiplies runs of columns of a, one after another."""
        if a.width % b.width != 0 or a.value.rows != b.value.rows:
            self._fail(f"mul got {a.value.rows} x {a.width} and {b.value.rows} x {b.width}")
        return self._step("mul", (a, b), a.value.rows, a.width)

    @op(inputs=("a", "b"), attributes=("group",), by_row=True)
    def vecdot(self, a: Handle, b: Handle, *, group: int) -> Handle:
        """The sum of products of a and b over each group of columns."""
        self._same_shape("vecdot", a, b)
        if group < 1 or a.width % group != 0:
            self._fail(f"groups of {group} do not divide the width {a.width}")
        return self._step("vecdot", (a, b), a.value.rows, a.width // group, group=group)

    @op(inputs=("a", "b"), weights=("weight",), by_row=True)
    def lerp(self, a: Handle, b: Handle, name: str) -> Handle:
        """A + (b - a) times the weight, for each run of the weight as long as a row, side by side."""
        self._same_shape("lerp", a, b)
        weight = self._flat(name)
        if weight.shape[0] % a.width != 0:
            self._fail(f"{weight.name} has {weight.shape[0]} elements, no multiple of the width {a.width}")
        return self._step("lerp", (a, b), a.value.rows, weight.shape[0], (weight,))

    @op(inputs=("x",), attributes=("first", "last", "groups"), by_row=True)
    def slice(self, x: Handle, *, first: int, width: int, groups: int = 1) -> Handle:
        """`width` columns from `first` on of x, or of each of `groups` equal runs of its columns."""
        if x.width % groups != 0 or not 0 <= first <= first + width <= x.width // groups:
            self._fail(f"slice got columns {first} to {first + width} of {x.width // groups}")
        return self._step("slice", (x,), x.value.rows, width * groups, first=first, last=first + width, groups=groups)

    @op(inputs=("a", "b"), attributes=("heads", "shared?"), by_row=True)
    def concat(self, a: Handle, b: Handle, *, heads: int = 1, shared: bool = False) -> Handle:
        """Each head of a followed by that of b; if b is `shared`, all of it follows each."""
        n_parts = 1 if shared else heads
        if heads < 1 or a.width % heads != 0 or b.width % n_parts != 0 or a.value.rows != b.value.rows:
            self._fail(f"concat got {a.value.rows} x {a.width} and {b.value.rows} x {b.width} for {heads} heads")
        width = a.width + b.width // n_parts * heads
        return self._step("concat", (a, b), a.value.rows, width, heads=heads, shared=int(shared))

    def split(self, x: Handle, *widths: int, groups: int = 1) -> tuple[Handle, ...]:
        """X, or each of `groups` equal runs of its columns, cut into parts of these widths."""
        if sum(widths) * groups != x.width:
            self._fail(f"split cuts {' + '.join(map(str, widths))} columns of {groups} runs from {x.width}")
        return tuple(self.slice(x, first=sum(widths[:i]), width=n, groups=groups) for i, n in enumerate(widths))

    def vector(self, name: str) -> Vector:
        """A weight that every row meets: `x + p.vector(name)` and `x * p.vector(name)`."""
        return Vector(self._flat(name))

    @op(inputs=("x",), weights=("weight",), by_row=True)
    def add_weight(self, x: Handle, weight: Weight) -> Handle:
        """Each group of len(weight) columns plus the weight."""
        return self._step("add_weight", (x,), x.value.rows, x.width, (self._dividing(weight, x),))

    @op(inputs=("x",), weights=("weight",), attributes=("run?",), by_row=True)
    def mul_weight(self, x: Handle, weight: str | Weight, *, run: int = 0) -> Handle:
        """Each group of len(weight) columns times the weight; with a `run` each element serves that many columns."""
        weight = self._vector(weight) if isinstance(weight, str) else weight
        return self._step("mul_weight", (x,), x.value.rows, x.width, (self._dividing(weight, x, max(1, run)),), run=run)

    def _dividing(self, weight: Weight, x: Handle, each: int = 1) -> Weight:
        if x.width % (weight.shape[0] * each) != 0:
            runs = f" for runs of {each} columns" if each > 1 else ""
            self._fail(f"{weight.name} has {weight.shape[0]} elements{runs}, which do not divide the width {x.width}")
        return weight

    @op(inputs=("a", "b"), by_row=True)
    def add(self, a: Handle, b: Handle) -> Handle:
        """A + b."""
        self._same_shape("add", a, b)
        return self._step("add", (a, b), a.value.rows, a.width)

    @op(inputs=("x",), attributes=("factor",), by_row=True)
    def scale(self, x: Handle, factor: float) -> Handle:
        """X times a constant."""
        return self._step("scale", (x,), x.value.rows, x.width, factor=float(factor))

    @op(inputs=("x",))
    def output_rows(self, x: Handle) -> Handle:
        """Only the rows whose logits are wanted."""
        return self._step("output_rows", (x,), "output", x.width)


# x plus what an adapter adds, times factor and the scale that the batch gives the row's sequence.
OPS["add_lora"] = Op("add_lora", inputs=("x", "added"), attributes=("adapter", "factor"), fused=True, by_row=True)

# x normed, times each weight, plus its bias, times scale; then "glu:ACT" of two with a limit, or added to the residual.
OPS["linears"] = Op(
    "linears",
    inputs=("x", "residual?"),
    weights=("norm?", "weight...", "bias?..."),
    matrices=("weight",),
    attributes=("roles", "eps", "scale", "epilogue", "limit?"),
    scratch=("activations",),
    part=_linear_part,
    fused=True,
    cuts_rows=True,
)
