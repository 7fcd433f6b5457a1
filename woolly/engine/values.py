"""Values of a step for a whole text, outside of any request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from woolly.engine.runner import Runner
from woolly.engine.scheduler import Scheduler
from woolly.runtime import Batch, pages_for

__all__ = ["read_values"]


def read_values(runner: Runner, scheduler: Scheduler, ids: Sequence[int], step: int | None) -> npt.NDArray[np.float32]:
    """The value of one step of the running plan (None: the last) for every token, [len(ids), width].

    It is computed on pages that no request uses; requests may be preempted for them.
    """
    pages = scheduler.claim(pages_for(len(ids)))
    pool, sight, reader = scheduler.slots, scheduler.sight, object()
    slots = [pool.take(), pool.take()] if pool.n_slots else []
    chunk = scheduler.chunk if runner.program.plan.is_causal else len(ids)
    parts = []
    try:
        for i, first in enumerate(range(0, len(ids), chunk)):
            tokens = ids[first : first + chunk]
            # The two slots take turns: a run writes no slot that it reads.
            turn = [(slots[i % 2 - 1] if i else -1, slots[i % 2])] if slots else None
            sight.move(reader, pages, first, pages_for(first + len(tokens)))
            batch = Batch.of([(tokens, first, pages)], range(len(tokens)), slots=turn)
            batch = replace(batch, window_pages=sight.tables(batch.pages))
            parts.append(runner.compute(batch, 0, None if step is None else step + 1).copy())
    finally:
        sight.end(reader, pages)
        scheduler.pages.give_back(pages)
        for slot in slots:
            pool.give_back(slot)
    return np.concatenate(parts)
