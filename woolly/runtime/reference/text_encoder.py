"""NumPy reference of the ops over complete sequences."""

from __future__ import annotations

import numpy as np

from woolly.plan import Step
from woolly.runtime.reference.ops import Float32, OpContext, reference


@reference("embed_position")
def _embed_position(c: OpContext, step: Step, x: Float32) -> Float32:
    return x + c.weights.rows(step.weights[0].name, c.batch.positions)


@reference("embed_token_type")
def embed_token_type(c: OpContext, step: Step, x: Float32) -> Float32:
    """Add the token type embedding of each row."""
    table = c.weights.get(step.weights[0].name).reshape(-1, x.shape[1])
    kinds = np.zeros(len(x), np.int32)
    if separator := step.integer("separator"):
        for s in range(c.batch.n_sequences):
            rows = slice(c.batch.offsets[s], c.batch.offsets[s + 1])
            is_separator = c.batch.tokens[rows] == separator
            kinds[rows] = np.minimum(np.cumsum(is_separator) - is_separator, 1)
    return x + table[kinds]


@reference("pool")
def pool(c: OpContext, step: Step, x: Float32) -> Float32:
    """Pool the sequence of each output row to one row."""
    texts = np.searchsorted(c.batch.offsets, c.batch.output_rows, side="right") - 1
    firsts, lasts = c.batch.offsets[texts], c.batch.offsets[texts + 1]
    if step.text("kind") != "mean":
        return x[firsts if step.text("kind") == "first" else lasts - 1]
    means = [x[a:b].mean(axis=0, dtype=np.float64) for a, b in zip(firsts, lasts, strict=True)]
    return np.array(means, np.float32).reshape(len(means), x.shape[1])
