"""Row-wise and element-wise ops: embedding, norms, linear, activations, sums and products."""

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
    """Return the model part of a linear step, from the name of its first matrix."""
    name = step.matrices[0].tensor.removesuffix(".weight").rpartition(".")[2]
    if name.startswith("attn_") and name not in _PARTS:
        return "qkv"
    return _PARTS.get(name, "logits" if name in ("output", "token_embd") else "other")


def _lookup_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the cost of a lookup: one table row is read per batch row."""
    (table,) = step.weights
    return Cost(load.total * table.type.row_bytes(table.shape[1]), 0)


class BasicOps(Recorder):
    """Row-wise and element-wise ops of the tracer."""

    @op(weights=("table",), tables=("table",), cost=_lookup_cost)
    def embed(self, table: str, *, width: int) -> Handle:
        """Look up the row of `table` for each token of the batch."""
        weight = self._matrix(table)
        if weight.shape[1] != width:
            self._fail(f"{weight.name} has {weight.shape[1]} columns, but the metadata says {width}")
        return self._step("embed", (), "batch", weight.shape[1], (weight,))

    @op(weights=("norm?",), attributes=("eps",))
    def hidden(self, norm: str | None = None, *, eps: float = 0.0, width: int = 0) -> Handle:
        """Read `Batch.hidden`. Rows from a draft are unchanged; rows from the main model are normed with the weight.

        This is the first step of a draft. The rows that a draft computes are already normed. Without a norm, all rows
        (`width` columns) are used unchanged.
        """
        if norm is None and width < 1:
            self._fail(f"hidden without a norm needs the width of its rows, but got {width}")
        weights = () if norm is None else (self._vector(norm),)
        width = weights[0].shape[0] if weights else width
        return self._step("hidden", (), "batch", width, weights, eps=float(eps))

    @op(inputs=("x",), weights=("weight?",), attributes=("eps", "group?"), by_row=True)
    def rms_norm(self, x: Handle, name: str | None = None, *, eps: float, group: int = 0) -> Handle:
        """Divide each group of len(weight) columns by its root mean square, and multiply by the weight.

        Without a name there is no weight, and a group has `group` columns; 0: the entire row.
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
        """Subtract the mean of each group of columns, divide by its standard deviation, apply weight and `name.bias`.

        A weight of n elements is shared by all groups of n columns. One of shape (m, n) has separate weights for m
        groups. Without a name there is no weight, and a group has `group` columns; 0: the entire row.
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
        """Return x @ weight.T, plus `name.bias` if the file has one. `width` is the output width.

        With `first`, the weight is `width` rows of a merged matrix. A `name.scale` multiplies the product.
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
        # The scale applies to the product, before the bias is added.
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
        """Return x @ weight.T with one of two weights per row: 0 or 1 from `Batch.gather_rows`, by default 0.

        `width` is the output width. The second weight is for image rows.
        """
        weights = self._matrix(name), self._matrix(other)
        for weight in weights:
            if weight.shape != (width, x.width):
                self._fail(f"{weight.name} has shape {weight.shape}, expected ({width}, {x.width})")
        return self._step("linear_id", (x,), x.value.rows, width, weights)

    @op(inputs=("x",), weights=("weight",), matrices=("weight",), scratch=("activations",), part="qkv", by_row=True)
    def per_head_linear(self, x: Handle, name: str, *, heads: int, width: int) -> Handle:
        """Multiply each head of x by a separate transposed matrix. `width` is the head size of the output.

        The matrices are one 3D tensor, or one matrix with the rows of all heads in order.
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
        """Return act(gate) * up. "clamped" (gpt-oss): both clamped to 7, then gate * sigmoid(1.702 gate) * (up + 1).

        With a `limit`: min(silu(gate), limit) * clamp(up, ±limit). "clipped" clamps the gate before silu instead.
        """
        self._same_shape("glu", gate, up)
        if act not in get_args(Gate):
            self._fail(f"glu got the activation {act!r}; expected one of {', '.join(get_args(Gate))}")
        return self._step("glu", (gate, up), gate.value.rows, gate.width, act=act, limit=self._limit("glu", act, limit))

    @op(inputs=("x",), attributes=("kind",), by_row=True)
    def unary(self, x: Handle, kind: Act) -> Handle:
        """Apply an activation to each element. `relu2` is relu squared.

        gelu is the tanh approximation, gelu_erf the exact form, gelu_quick x * sigmoid(1.702 x). root is
        sign(x) * sqrt(max(|x|, 1e-6)).
        """
        if kind not in get_args(Act):
            self._fail(f"unary got the kind {kind!r}; expected one of {', '.join(get_args(Act))}")
        return self._step("unary", (x,), x.value.rows, x.width, kind=kind)

    @op(inputs=("x",), attributes=("alpha_p", "alpha_n", "beta", "eps"), by_row=True)
    def xielu(self, x: Handle, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Handle:
        """Return beta x + alpha_p x^2 for x > 0, else beta x + alpha_n (expm1(min(x, eps)) - x)."""
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
        """Return cap * tanh(x / cap)."""
        if cap <= 0:
            self._fail(f"softcap got {cap:g}; expected a positive bound")
        return self._step("softcap", (x,), x.value.rows, x.width, cap=float(cap))

    @op(inputs=("x",), attributes=("limit",), by_row=True)
    def clamp(self, x: Handle, limit: float) -> Handle:
        """Clamp x to ±limit."""
        if limit <= 0:
            self._fail(f"clamp got {limit:g}; expected a positive bound")
        return self._step("clamp", (x,), x.value.rows, x.width, limit=float(limit))

    @op(inputs=("x",), attributes=("low", "high"), by_row=True)
    def clip(self, x: Handle, low: float, high: float) -> Handle:
        """Clamp x to [low, high]."""
        if not low < high:
            self._fail(f"clip got {low:g} to {high:g}; expected a lower and an upper bound")
        return self._step("clip", (x,), x.value.rows, x.width, low=float(low), high=float(high))

    @op(inputs=("a", "b"), by_row=True)
    def mul(self, a: Handle, b: Handle) -> Handle:
        """Return a * b. Each element of a narrower b multiplies a run of adjacent columns of a."""
        if a.width % b.width != 0 or a.value.rows != b.value.rows:
            self._fail(f"mul got {a.value.rows} x {a.width} and {b.value.rows} x {b.width}")
        return self._step("mul", (a, b), a.value.rows, a.width)

    @op(inputs=("a", "b"), attributes=("group",), by_row=True)
    def vecdot(self, a: Handle, b: Handle, *, group: int) -> Handle:
        """Return the dot product of a and b over each group of columns."""
        self._same_shape("vecdot", a, b)
        if group < 1 or a.width % group != 0:
            self._fail(f"groups of {group} do not divide the width {a.width}")
        return self._step("vecdot", (a, b), a.value.rows, a.width // group, group=group)

    @op(inputs=("a", "b"), weights=("weight",), by_row=True)
    def lerp(self, a: Handle, b: Handle, name: str) -> Handle:
        """Return a + (b - a) * weight for each row-sized run of the weight, concatenated."""
        self._same_shape("lerp", a, b)
        weight = self._flat(name)
        if weight.shape[0] % a.width != 0:
            self._fail(f"{weight.name} has {weight.shape[0]} elements, no multiple of the width {a.width}")
        return self._step("lerp", (a, b), a.value.rows, weight.shape[0], (weight,))

    @op(inputs=("x",), attributes=("first", "last", "groups"), by_row=True)
    def slice(self, x: Handle, *, first: int, width: int, groups: int = 1) -> Handle:
        """Slice `width` columns from `first` on, of x or of each of `groups` equal runs of columns."""
        if x.width % groups != 0 or not 0 <= first <= first + width <= x.width // groups:
            self._fail(f"slice got columns {first} to {first + width} of {x.width // groups}")
        return self._step("slice", (x,), x.value.rows, width * groups, first=first, last=first + width, groups=groups)

    @op(inputs=("a", "b"), attributes=("heads", "shared?"), by_row=True)
    def concat(self, a: Handle, b: Handle, *, heads: int = 1, shared: bool = False) -> Handle:
        """Concatenate each head of a with the same head of b, or with all of b if it is `shared`."""
        n_parts = 1 if shared else heads
        if heads < 1 or a.width % heads != 0 or b.width % n_parts != 0 or a.value.rows != b.value.rows:
            self._fail(f"concat got {a.value.rows} x {a.width} and {b.value.rows} x {b.width} for {heads} heads")
        width = a.width + b.width // n_parts * heads
        return self._step("concat", (a, b), a.value.rows, width, heads=heads, shared=int(shared))

    def split(self, x: Handle, *widths: int, groups: int = 1) -> tuple[Handle, ...]:
        """Split x, or each of `groups` equal runs of its columns, into parts of these widths."""
        if sum(widths) * groups != x.width:
            self._fail(f"split cuts {' + '.join(map(str, widths))} columns of {groups} runs from {x.width}")
        return tuple(self.slice(x, first=sum(widths[:i]), width=n, groups=groups) for i, n in enumerate(widths))

    def vector(self, name: str) -> Vector:
        """Return a vector weight for `x + p.vector(name)` and `x * p.vector(name)`."""
        return Vector(self._flat(name))

    @op(inputs=("x",), weights=("weight",), by_row=True)
    def add_weight(self, x: Handle, weight: Weight) -> Handle:
        """Add the weight to each group of len(weight) columns."""
        return self._step("add_weight", (x,), x.value.rows, x.width, (self._dividing(weight, x),))

    @op(inputs=("x",), weights=("weight",), attributes=("run?",), by_row=True)
    def mul_weight(self, x: Handle, weight: str | Weight, *, run: int = 0) -> Handle:
        """Multiply each group of len(weight) columns by the weight. With `run`, each element serves `run` columns."""
        weight = self._vector(weight) if isinstance(weight, str) else weight
        return self._step("mul_weight", (x,), x.value.rows, x.width, (self._dividing(weight, x, max(1, run)),), run=run)

    def _dividing(self, weight: Weight, x: Handle, each: int = 1) -> Weight:
        if x.width % (weight.shape[0] * each) != 0:
            runs = f" for runs of {each} columns" if each > 1 else ""
            self._fail(f"{weight.name} has {weight.shape[0]} elements{runs}, which do not divide the width {x.width}")
        return weight

    @op(inputs=("a", "b"), by_row=True)
    def add(self, a: Handle, b: Handle) -> Handle:
        """Return a + b."""
        self._same_shape("add", a, b)
        return self._step("add", (a, b), a.value.rows, a.width)

    @op(inputs=("x",), attributes=("factor",), by_row=True)
    def scale(self, x: Handle, factor: float) -> Handle:
        """Multiply x by a constant."""
        return self._step("scale", (x,), x.value.rows, x.width, factor=float(factor))

    @op(inputs=("x",))
    def output_rows(self, x: Handle) -> Handle:
        """Select the output rows of the batch."""
        return self._step("output_rows", (x,), "output", x.width)


# x + added * factor * the adapter scale of the row's sequence in the batch.
OPS["add_lora"] = Op("add_lora", inputs=("x", "added"), attributes=("adapter", "factor"), fused=True, by_row=True)

# (norm(x) @ weight.T + bias) * scale for each weight; then the epilogue: "glu:ACT" of two outputs, or the residual.
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
