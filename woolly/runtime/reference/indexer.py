"""NumPy reference of the sparse-attention index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.plan import Step
from woolly.runtime.reference.ops import Float32, OpContext, reference, store_cache
from woolly.runtime.state import PAGE_SIZE


@reference("indexer")
def _indexer(c: OpContext, step: Step, q: Float32, k: Float32, *weights: Float32) -> Float32:
    store_cache(c, step.integer("entry"), k)
    return index_topk(c, step, q, *weights)


@reference("index_topk")
def index_topk(c: OpContext, step: Step, q: Float32, *weights: Float32) -> Float32:
    """Return the positions of the keys with the highest scores, per row, and per head if there are no weights."""
    keys, head_dim = c.state.k[step.integer("entry")], step.integer("head_dim")
    n, block, local = (step.integer(name) for name in ("n", "block", "local"))
    heads = q.reshape(len(q), -1, head_dim)
    every, is_whole = max(1, step.integer("every")), bool(step.integer("whole"))
    width = n * every + every - 1 if is_whole else n * block
    out = np.full((len(q), 1 if weights else heads.shape[1], width), -1, np.float32)
    for s in range(c.batch.n_sequences):
        for row in range(c.batch.offsets[s], c.batch.offsets[s + 1]):
            n_seen = int(c.batch.positions[row]) + 1
            candidates = np.arange(every - 1, n_seen, every)
            past = keys[c.batch.pages[s][: -(-n_seen // PAGE_SIZE)]].reshape(-1, head_dim)[:n_seen]
            scores = heads[row] @ past[candidates].T
            if weights:
                scores = weights[0][row][None] @ np.fmax(scores, np.float32(0))
            for group, of_group in enumerate(scores):
                chosen = candidates[best_positions(of_group, n, block, local)]
                if is_whole:
                    runs = chosen[:, None] + np.arange(1 - every, 1)
                    chosen = np.concatenate([runs.reshape(-1), np.arange(n_seen // every * every, n_seen)])
                out[row, group, : len(chosen)] = chosen
    return out.reshape(len(q), -1)


def best_positions(scores: Float32, n: int, block: int, local: int) -> npt.NDArray[np.int64]:
    """Return the positions of the n blocks with the highest scores, including the last `local` blocks, ascending.

    NaN scores rank below all others.
    """
    n_blocks = -(-len(scores) // block)
    padded = np.full(n_blocks * block, np.nan, np.float32)
    padded[: len(scores)] = scores
    highest = np.fmax.reduce(padded.reshape(n_blocks, block), axis=1)
    is_earlier = np.arange(n_blocks) < n_blocks - local
    kept = np.sort(np.lexsort((-highest, is_earlier))[:n])
    positions = (kept[:, None] * block + np.arange(block)).reshape(-1)
    return positions[positions < len(scores)]
