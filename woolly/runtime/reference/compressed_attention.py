"""NumPy reference of compressed attention."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.plan import Step
from woolly.runtime.reference.ops import Float32, OpContext, reference, softmax, store_cache
from woolly.runtime.reference.scans import scanned
from woolly.runtime.state import PAGE_SIZE


@reference("compress")
def _compress(c: OpContext, step: Step, kv: Float32, gate: Float32) -> Float32:
    every, bias = step.integer("every"), c.weights.get(step.weights[0].name)
    n_rows = c.state.slots[step.integer("entry")].shape[1] // (2 * kv.shape[1]) + 1
    n_blocks, width = n_rows // every, kv.shape[1] // (n_rows // every)
    y = np.zeros((len(kv), width), np.float32)

    def advance(row: int, tail: Float32) -> Float32:
        rows = np.vstack([tail, np.stack([kv[row], gate[row]])[None]])
        position = int(c.batch.positions[row])
        if (position + 1) % every == 0:
            parts = rows.reshape(n_blocks, every, 2, n_blocks, width)
            # An earlier block contributes its first columns, the later one its last.
            own = np.concatenate([parts[i, :, :, i] for i in range(n_blocks)])  # rows, (kv, gate), columns
            places = np.concatenate([bias[:, i * width : (i + 1) * width] for i in range(n_blocks)])
            scores = own[:, 1] + places
            scores[: max(0, n_rows - position - 1)] = -np.inf  # before the sequence
            shares = np.exp(scores - scores.max(axis=0))
            y[row] = (shares / shares.sum(axis=0) * own[:, 0]).sum(axis=0)
        return rows[1:]

    scanned(c, step, (n_rows - 1, 2, kv.shape[1]), advance)
    return y


@reference("cache_rows")
def _cache_rows(c: OpContext, step: Step, x: Float32) -> Float32:
    store_cache(c, step.integer("entry"), x)
    return x


@reference("attend_compressed")
def attend_compressed(
    c: OpContext, step: Step, q: Float32, latest: Float32, blocks: Float32, *chosen: Float32
) -> Float32:
    """Compute attention over the latest rows and the visible blocks, in one softmax."""
    head_dim, window, every = (step.integer(name) for name in ("head_dim", "window", "every"))
    sinks = c.weights.get(step.weights[0].name)[:, None]
    heads, out = q.reshape(len(q), -1, head_dim), np.empty_like(q)
    for s in range(c.batch.n_sequences):
        for row in range(c.batch.offsets[s], c.batch.offsets[s + 1]):
            position = int(c.batch.positions[row])
            own = np.arange(max(0, position + 1 - window), position + 1)
            ends = np.arange(every - 1, position + 1, every)
            if chosen:
                ends = chosen[0][row][chosen[0][row] >= 0].astype(np.int64)
            keys = np.concatenate([_kept(c, step, "entry", s, own), _kept(c, step, "blocks", s, ends)])
            scores = heads[row] @ keys.T * np.float32(step.number("scale"))
            out[row] = (softmax(scores, np.ones(scores.shape, np.bool_), sinks) @ keys).reshape(-1)
    return out


def _kept(c: OpContext, step: Step, name: str, sequence: int, positions: npt.NDArray[np.int64]) -> Float32:
    """Return the rows of an entry at some positions of a sequence."""
    entry = step.integer(name)
    pages = c.batch.table(c.state.windows[entry])[sequence]
    rows: Float32 = c.state.k[entry][pages[positions // PAGE_SIZE], positions % PAGE_SIZE, 0]
    return rows.astype(np.float32)
