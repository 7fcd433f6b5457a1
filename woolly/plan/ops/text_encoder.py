"""Ops over complete sequences: position and token-type embeddings, and pooling."""

from __future__ import annotations

from typing import Literal, get_args

from woolly.plan.ops.table import op
from woolly.plan.recorder import Handle, Recorder

Pool = Literal["mean", "first", "last"]


class TextEncoderOps(Recorder):
    """Sequence ops of the tracer: positions, token types and pooling."""

    @op(inputs=("x",), weights=("table",), tables=("table",))
    def embed_position(self, x: Handle, table: str) -> Handle:
        """Add the row of `table` for each row's position."""
        weight = self._matrix(table)
        if weight.shape[1] != x.width:
            self._fail(f"{weight.name} has {weight.shape[1]} columns, but x is {x.width} wide")
        return self._step("embed_position", (x,), x.value.rows, x.width, (weight,))

    @op(inputs=("x",), weights=("table",), attributes=("separator?",))
    def embed_token_type(self, x: Handle, table: str, separator: int = 0) -> Handle:
        """Add the first row of `table`, or after the first token `separator` (0: none), the second row.

        The second sequence of a pair follows the first separator.
        """
        weight = self._weight(table)
        if weight.shape[-1] != x.width:
            self._fail(f"{weight.name} has {weight.shape[-1]} columns, but x is {x.width} wide")
        has_second = len(weight.shape) == 2 and weight.shape[0] > 1
        return self._step(
            "embed_token_type", (x,), x.value.rows, x.width, (weight,), separator=separator if has_second else 0
        )

    @op(inputs=("x",), attributes=("kind",))
    def pool(self, x: Handle, kind: Pool) -> Handle:
        """Pool each sequence to one row: the mean of its rows, the first row, or the last row.

        The sequence must be complete in the batch.
        """
        if x.value.rows != "batch":
            self._fail("pool needs all rows of each sequence, but got only some")
        if kind not in get_args(Pool):
            self._fail(f"pool got the kind {kind!r}; expected one of {', '.join(get_args(Pool))}")
        return self._step("pool", (x,), "output", x.width, kind=kind)
