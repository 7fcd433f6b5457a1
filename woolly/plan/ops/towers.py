"""Ops of vision and audio encoders, and of models with injected embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from woolly.plan.ops.table import OPS, Op, op
from woolly.plan.recorder import Handle, Recorder

if TYPE_CHECKING:
    from woolly.plan.plan import Rows

Merge = Literal["concat", "interleave", "mean"]


class TowerOps(Recorder):
    """Vision and audio encoder ops of the tracer."""

    @op()
    def input(self, *, width: int) -> Handle:
        """Read the input rows of the batch (`Batch.hidden`)."""
        if width < 1:
            self._fail(f"input got a width of {width}; expected at least 1")
        return self._step("input", (), "batch", width)

    @op(inputs=("x",), weights=("table",), tables=("table",), attributes=("first", "taps"))
    def embedding_bag(self, x: Handle, table: str, *, first: int = 0, taps: int = 1) -> Handle:
        """Add rows of `table`, times weights.

        `taps` columns of `Batch.gather_rows` from `first` on have the row indices; -1 adds nothing. This looks up or
        interpolates a table without a grid in the plan.
        """
        weight = self._row(table)
        if weight.shape[1] != x.width or x.value.rows != "batch":
            self._fail(f"{weight.name} has {weight.shape[1]} columns, but x is {x.value.rows} x {x.width}")
        if first < 0 or taps < 1:
            self._fail(f"embedding_bag got {taps} places from {first} on; expected at least one, from 0 on")
        return self._step("embedding_bag", (x,), "batch", x.width, (weight,), first=first, taps=taps)

    @op(inputs=("x",), attributes=("count", "kind"))
    def merge_patches(self, x: Handle, *, rows: int, kind: Merge) -> Handle:
        """Merge `rows` consecutive rows, starting at each output row, into one.

        "concat" concatenates the rows, "interleave" has the first column of every row, then the second, ..., and "mean"
        averages them.
        """
        if x.value.rows != "batch" or rows < 1:
            self._fail(f"merge_patches got {rows} rows of {x.value.rows}; expected at least one of all rows")
        if kind not in get_args(Merge):
            self._fail(f"merge_patches got the kind {kind!r}; expected one of {', '.join(get_args(Merge))}")
        return self._step(
            "merge_patches", (x,), "output", x.width * (1 if kind == "mean" else rows), count=rows, kind=kind
        )

    @op(
        inputs=("x",),
        weights=("weight", "bias?"),
        attributes=("kernel", "before", "act"),
        part="recurrence",
        whole=True,
    )
    def conv1d(self, x: Handle, name: str, *, kernel: int, before: int, act: Literal["", "silu"] = "") -> Handle:
        """Convolve each column with a filter over `kernel` rows, add `name.bias` if the file has one, then apply silu.

        The filter begins `before` rows before each row, with zero padding. The sequence must be complete in the batch.
        """
        weight = self._weight(name)
        if tuple(n for n in weight.shape if n > 1) != tuple(n for n in (x.width, kernel) if n > 1):
            self._fail(f"{weight.name} has shape {weight.shape}, expected ({x.width}, {kernel})")
        if not 0 <= before < kernel or x.value.rows != "batch":
            self._fail(f"conv1d begins {before} rows before each of {x.value.rows}, and its filter has {kernel}")
        if act not in ("", "silu"):
            self._fail(f"conv1d got the activation {act!r}; expected silu or none")
        weight = replace(weight, shape=(x.width, kernel))
        weights = (weight, *self._bias(name, weight))
        return self._step("conv1d", (x,), "batch", x.width, weights, kernel=kernel, before=before, act=act)

    @op(inputs=("x",), weights=("weight",), attributes=("first", "taps", "wanted"), part="recurrence", whole=True)
    def gather_conv1d(self, x: Handle, name: str, *, first: int, taps: int, is_wanted: bool = False) -> Handle:
        """Convolve each column with a filter over `taps` rows: columns of `Batch.gather_rows` from `first` on.

        Indices count the rows of the sequence, which must be complete in the batch; -1 stands for zeros. With
        `is_wanted`, only output rows are computed, for a filter with a stride.
        """
        weight = self._weight(name)
        if tuple(n for n in weight.shape if n > 1) != tuple(n for n in (x.width, taps) if n > 1):
            self._fail(f"{weight.name} has shape {weight.shape}, expected ({x.width}, {taps})")
        if first < 0 or taps < 1 or x.value.rows != "batch":
            self._fail(f"gather_conv1d got {taps} places from {first} on of {x.value.rows} rows; expected all rows")
        weights = (replace(weight, shape=(x.width, taps)),)
        rows: Rows = "output" if is_wanted else "batch"
        return self._step("gather_conv1d", (x,), rows, x.width, weights, first=first, taps=taps, wanted=int(is_wanted))

    @op(inputs=("x",), weights=("weight",), attributes=("eps",), whole=True)
    def cumulative_norm(self, x: Handle, name: str, *, eps: float) -> Handle:
        """Subtract the mean of the sequence up to each row, divide by the standard deviation, multiply by the weight.

        The standard deviation of a row uses the mean up to that row. A weight of n elements is shared by each group of
        n columns: a row has all pitches of a time, with the channels of each.
        """
        weight = self._vector(name)
        if x.width % weight.shape[0] != 0 or x.value.rows != "batch":
            self._fail(f"{weight.name} has shape {weight.shape}, but x is {x.value.rows} x {x.width}")
        return self._step("cumulative_norm", (x,), "batch", x.width, (weight,), eps=float(eps))


# Replaces rows of x with embeddings of the batch (`Batch.inputs_embeds`, from column `part` * width on), or adds them.
OPS["scatter_rows"] = Op("scatter_rows", inputs=("x",), attributes=("part", "adds"), fused=True)
