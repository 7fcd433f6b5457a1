"""Bounds checks of multimodal batches, before kernels read them."""

from __future__ import annotations

import numpy as np

from woolly.plan import Plan, Step
from woolly.runtime.batch import Batch


class MultimodalChecks:
    """Checks a batch against the steps that read gather rows, injected embeddings or attention ranges."""

    def __init__(self, plan: Plan, is_supported: bool) -> None:
        """`is_supported`: whether the backend has kernels for such batches."""
        self._is_supported = is_supported
        self._blends = [step for step in plan.steps if step.op == "embedding_bag"]
        self._filters = [step for step in plan.steps if step.op == "gather_conv1d"]
        self._has_two = any(step.op == "linear_id" for step in plan.steps)
        self._folded = max((step.integer("count") for step in plan.steps if step.op == "merge_patches"), default=0)
        self._embeds_width = max((_end(plan, step) for step in plan.steps if step.op == "scatter_rows"), default=0)
        attends = [step for step in plan.steps if step.op == "attend"]
        self._has_chosen = any(len(step.inputs) > 1 for step in attends)
        self._has_chosen |= any(step.op == "attend_compressed" for step in plan.steps)
        self._sees_block = any(step.text("mask") == "block" for step in attends)
        # Attention ranges of the batch extend these masks, and must fit the shortest window.
        free = [step for step in attends if step.text("mask") in ("", "chunked")]
        self._sees_more = bool(free)
        self._window = min((step.integer("window") for step in free if step.integer("window")), default=0)
        self._is_chunked = any(step.text("mask") == "chunked" for step in free)
        self._is_any = bool(self._blends or self._filters or self._folded or self._sees_block)

    def check(self, batch: Batch) -> None:
        """Raise ValueError if kernels would access memory out of bounds or attend to missing positions."""
        if not (self._is_any or batch.is_multimodal):
            return
        if not self._is_supported:
            raise ValueError("this backend does not support batches with images yet")
        if self._folded and len(batch.output_rows) and int(batch.output_rows.max()) + self._folded > batch.n_rows:
            raise ValueError("rows are folded beyond the batch")
        if batch.rope_positions is not None and (
            batch.rope_positions.ndim != 2 or batch.rope_positions.shape[1] != batch.n_rows
        ):
            raise ValueError("the rope positions do not fit the batch")
        self._check_embeds(batch)
        self._check_gather_rows(batch)
        self._check_filters(batch)
        if self._has_two and batch.gather_rows is not None:
            self._check_matrices(batch)
        if batch.attn_ranges is not None:
            if self._has_chosen:
                raise ValueError("rows that choose positions see no others, whatever the batch says")
            if self._sees_block or self._sees_more:
                self._check_attn_ranges(batch)
        elif self._sees_block:
            raise ValueError("the batch does not say what rows see")

    def _check_embeds(self, batch: Batch) -> None:
        if batch.inputs_embeds is None and batch.embeds_rows is None:
            return
        rows, embeds = batch.embeds_rows, batch.inputs_embeds
        if rows is None or embeds is None or len(rows) != len(embeds):
            raise ValueError("the batch has another number of embeddings than of rows for them")
        if len(rows) and (rows[0] < 0 or rows[-1] >= batch.n_rows or (np.diff(rows) < 1).any()):
            raise ValueError("embeddings refer to rows outside the batch")
        if embeds.shape[1] < self._embeds_width:
            raise ValueError(f"the batch has embeddings of {embeds.shape[1]} columns, fewer than the plan reads")

    def _check_gather_rows(self, batch: Batch) -> None:
        gather_rows, gather_weights = batch.gather_rows, batch.gather_weights
        if not self._blends:
            return
        if (
            gather_rows is None
            or gather_weights is None
            or gather_rows.shape != gather_weights.shape
            or len(gather_rows) != batch.n_rows
        ):
            raise ValueError("the batch names no rows of a table")
        for step in self._blends:
            first, taps, n = step.integer("first"), step.integer("taps"), step.weights[0].shape[0]
            own = gather_rows[:, first : first + taps]
            if own.shape[1] < taps or own.min() < -1 or own.max() >= n:
                raise ValueError(f"a row index is outside its table of {n}")

    def _check_matrices(self, batch: Batch) -> None:
        """Raise ValueError unless each row selects matrix 0 or 1."""
        gather_rows = batch.gather_rows
        assert gather_rows is not None
        if len(gather_rows) != batch.n_rows or gather_rows.shape[1] < 1 or not np.isin(gather_rows[:, 0], (0, 1)).all():
            raise ValueError("a row is to be multiplied with a matrix that the step does not have")

    def _check_filters(self, batch: Batch) -> None:
        if not self._filters:
            return
        if batch.gather_rows is None or batch.gather_weights is None or len(batch.gather_rows) != batch.n_rows:
            raise ValueError("the batch does not name the rows of a filter")
        lengths = np.diff(batch.offsets)
        length = np.repeat(lengths, lengths)[:, None]
        for step in self._filters:
            first, taps = step.integer("first"), step.integer("taps")
            own = batch.gather_rows[:, first : first + taps]
            if own.shape[1] < taps:
                raise ValueError("the batch does not name the rows of a filter")
            if (own < -1).any() or (own >= length).any():
                raise ValueError("a filter reads a row outside its text")

    def _check_attn_ranges(self, batch: Batch) -> None:
        """Raise ValueError unless attention ranges are monotonic within a sequence and end within the batch."""
        assert batch.attn_ranges is not None
        if batch.attn_ranges.shape != (batch.n_rows, 2):
            raise ValueError("what rows see does not fit the batch")
        first, end = batch.attn_ranges.astype(np.int64).T
        lasts = np.repeat(batch.positions[batch.offsets[1:] - 1], np.diff(batch.offsets))
        is_inner = np.ones(batch.n_rows, bool)
        is_inner[batch.offsets[:-1]] = False
        falls = (np.diff(first, prepend=0) < 0) | (np.diff(end, prepend=0) < 0)
        is_bad = (first < 0) | (first >= end) | (end > lasts + 1) | (is_inner & falls)
        if not self._sees_block:
            is_bad |= (first > batch.positions) | (batch.positions >= end)
        if is_bad.any():
            raise ValueError("a row sees positions that do not fit its batch")
        if self._window and (batch.positions - first >= self._window).any():
            raise ValueError(f"rows that see each other are more than a window of {self._window}")
        if self._is_chunked and (end > batch.positions + 1).any():
            raise ValueError("rows of an image attend to each other, which chunked attention does not support")


def _end(plan: Plan, step: Step) -> int:
    """Return the number of leading embedding columns that a step reads."""
    return (step.integer("part") + 1) * plan.values[step.output].width
