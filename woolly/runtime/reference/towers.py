"""NumPy reference of the ops of vision and audio encoders, and of injected embeddings."""

from __future__ import annotations

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.elements import apply_act
from woolly.runtime.reference.ops import Float32, OpContext, reference


@reference("input")
def input(c: OpContext, step: Step) -> Float32:
    """Return the input rows of the batch."""
    if c.batch.hidden is None:
        raise ValueError("the batch has no input rows, which this plan begins with")
    return c.batch.hidden


@reference("embedding_bag")
def embedding_bag(c: OpContext, step: Step, x: Float32) -> Float32:
    """Add rows of a table, one list entry after another."""
    if c.batch.gather_rows is None or c.batch.gather_weights is None:
        raise ValueError("the batch names no rows of a table")
    y: Float32 = x.copy()
    table = c.weights.get(step.weights[0].name).reshape(step.weights[0].shape)
    for column in range(step.integer("first"), step.integer("first") + step.integer("taps")):
        gather_rows = c.batch.gather_rows[:, column]
        if gather_rows.min() < -1 or gather_rows.max() >= len(table):
            raise ValueError(f"a row index is outside its table of {len(table)}")
        y += np.where(
            gather_rows[:, None] >= 0, c.batch.gather_weights[:, column, None] * table[gather_rows], np.float32(0)
        )
    return y


@reference("merge_patches")
def merge_patches(c: OpContext, step: Step, x: Float32) -> Float32:
    """Merge consecutive rows, starting at each output row, into one."""
    rows = step.integer("count")
    if len(c.batch.output_rows) and c.batch.output_rows.max() + rows > len(x):
        raise ValueError("rows are folded beyond the batch")
    y: Float32 = x[c.batch.output_rows[:, None] + np.arange(rows)]  # [output rows, rows merged, columns]
    if step.text("kind") == "mean":
        y = y.mean(axis=1, dtype=np.float64).astype(np.float32)
    elif step.text("kind") == "interleave":
        y = y.swapaxes(1, 2)
    return y.reshape(len(y), -1)


@reference("conv1d")
def conv1d(c: OpContext, step: Step, x: Float32) -> Float32:
    """Convolve each column with a filter over neighboring rows, within each sequence."""
    weight, *bias = (c.weights.get(w.name).reshape(w.shape) for w in step.weights)
    kernel, before = step.integer("kernel"), step.integer("before")
    y = np.zeros_like(x)
    for first, last in zip(c.batch.offsets[:-1], c.batch.offsets[1:], strict=True):
        padded = np.pad(x[first:last], ((before, kernel - 1 - before), (0, 0)))
        for k in range(kernel):
            y[first:last] += padded[k : k + last - first] * weight[:, k]
    y = y + bias[0] if bias else y
    return apply_act("silu", y) if step.text("act") else y


@reference("gather_conv1d")
def gather_conv1d(c: OpContext, step: Step, x: Float32) -> Float32:
    """Apply a depthwise convolution to the rows listed in the batch, for each row or each output row."""
    first, taps = step.integer("first"), step.integer("taps")
    if c.batch.gather_rows is None or c.batch.gather_rows.shape[1] < first + taps:
        raise ValueError("the batch does not name the rows of a filter")
    weight = c.weights.get(step.weights[0].name).reshape(step.weights[0].shape)
    lengths = np.diff(c.batch.offsets)
    start, length = (np.repeat(one, lengths)[:, None] for one in (c.batch.offsets[:-1], lengths))
    gather_rows = c.batch.gather_rows[:, first : first + taps]
    if (gather_rows < -1).any() or (gather_rows >= length).any():
        raise ValueError("a filter reads a row outside its text")
    gather_rows = np.where(gather_rows < 0, len(x), start + gather_rows)  # the last row is zeros
    if step.integer("wanted"):
        gather_rows = gather_rows[c.batch.output_rows]
    padded = np.concatenate([x, np.zeros((1, x.shape[1]), np.float32)])
    y = np.zeros((len(gather_rows), x.shape[1]), np.float32)
    for k in range(taps):
        y += padded[gather_rows[:, k]] * weight[:, k]
    return y


@reference("cumulative_norm")
def cumulative_norm(c: OpContext, step: Step, x: Float32) -> Float32:
    """Normalize each row by the cumulative mean and deviation of its sequence."""
    weight = c.weights.get(step.weights[0].name)
    y = np.zeros_like(x)
    for first, last in zip(c.batch.offsets[:-1], c.batch.offsets[1:], strict=True):
        rows = x[first:last].astype(np.float64)
        count = x.shape[1] * np.arange(1, len(rows) + 1)
        off = rows - (np.cumsum(rows.sum(axis=1)) / count)[:, None]
        spread = np.cumsum((off**2).sum(axis=1)) / count
        y[first:last] = off / np.sqrt(spread + step.number("eps"))[:, None]
    return y * np.tile(weight, x.shape[1] // len(weight))


@reference("scatter_rows")
def scatter_rows(c: OpContext, step: Step, x: Float32) -> Float32:
    """Replace rows of x with the injected rows, or add them."""
    y: Float32 = x.copy()
    width, part = x.shape[1], step.integer("part")
    if c.batch.inputs_embeds is not None and c.batch.embeds_rows is not None:
        if c.batch.inputs_embeds.shape[1] < (part + 1) * width:
            raise ValueError(
                f"the batch has embeddings of {c.batch.inputs_embeds.shape[1]} columns, fewer than the plan reads"
            )
        rows = c.batch.inputs_embeds[:, part * width : (part + 1) * width]
        y[c.batch.embeds_rows] = y[c.batch.embeds_rows] + rows if step.integer("adds") else rows
    return y
