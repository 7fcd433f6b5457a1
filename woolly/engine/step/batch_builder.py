"""Build the batch of a step from the spans of all requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.runtime import Batch

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.engine.step.scheduler_output import SchedulerOutput

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Slots:
    """Slots of recurrent state that a step reads and writes."""

    read: list[int]  # slot of each request; -1: zeros
    written: list[int]
    snapshots: list[tuple[int, int]]  # (row, slot): the slot receives the state after the row

    def put_into(self, batch: Batch) -> Batch:
        """Return the batch with these slots."""
        return replace(
            batch,
            slots_in=np.array(self.read, np.int32),
            slots_out=np.array(self.written, np.int32),
            snapshots=np.array(self.snapshots, np.int32).reshape(-1, 2),
        )


def build_batch(scheduled: SchedulerOutput, slots: Slots | None, windows: Callable[[Int32], Int32 | None]) -> Batch:
    """Return the batch of all spans. `windows` returns the window page tables for a page table.

    Lists are concatenated and converted once, because most steps have one row per request.
    """
    tokens: list[int] = []
    positions: list[int] = []
    offsets = [0]
    outputs: list[int] = []
    pages: list[Int32] = []
    end = 0
    for span in scheduled.spans:
        request, first, n_outputs = span.request, span.first, span.n_outputs
        if span.n_tokens == 1 == n_outputs and not span.n_again:
            tokens.append(request.context[first])
            positions.append(first)
            outputs.append(end)
            end += 1
        else:
            begin = end
            tokens += request.context[first : first + span.n_again + span.n_tokens]
            tokens += span.drafts
            end = len(tokens)
            positions += range(first, first + end - begin)
            outputs += range(end - n_outputs, end)
        offsets.append(end)
        pages.append(request.page_row)
    table, scales = page_table(pages), [span.request.adapters for span in scheduled.spans]
    batch = Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        offsets=np.array(offsets, np.int32),
        pages=table,
        output_rows=np.array(outputs, np.int32),
        window_pages=windows(table),
        adapters=np.array(scales, np.float32) if scales[0] else None,
    )
    if any(span.request.multimodal is not None for span in scheduled.spans):
        batch = with_multimodal(batch, scheduled)
    return batch if slots is None else slots.put_into(batch)


def with_multimodal(batch: Batch, scheduled: SchedulerOutput) -> Batch:
    """Return the batch with injected embeddings, M-RoPE positions and attention ranges."""
    at: list[int] = []
    rows: list[npt.NDArray[np.float32]] = []
    each = [span.request.multimodal for span in scheduled.spans]
    gather_rows = np.zeros((batch.n_rows, 1), np.int32)
    rope_positions = np.tile(batch.positions, (max(inputs.n_axes for inputs in each if inputs is not None), 1))
    attn_ranges = np.stack([batch.positions, batch.positions + 1], axis=1)
    has_rope_positions = has_ranges = False
    for span, (begin, end) in zip(scheduled.spans, pairwise(batch.offsets.tolist()), strict=True):
        inputs = span.request.multimodal
        if inputs is None:
            continue
        first, last = span.first, span.first + end - begin
        found, its = inputs.embeddings_in(first, last)
        at += [begin + row for row in found]
        rows += its
        gather_rows[begin:end, 0] = inputs.visual_mask(first, last)
        if inputs.mrope_positions is not None:
            rope_positions[:, begin:end] = inputs.rope_positions(first, last)  # identical for all images of a model
            has_rope_positions = True
        if (seen := inputs.attention_ranges(first, last)) is not None:
            attn_ranges[begin:end] = seen
            has_ranges = True
    return replace(
        batch,
        inputs_embeds=np.concatenate(rows) if rows else None,
        embeds_rows=np.array(at, np.int32) if rows else None,
        rope_positions=rope_positions if has_rope_positions else None,
        attn_ranges=attn_ranges if has_ranges else None,
        gather_rows=gather_rows if gather_rows.any() else None,
        gather_weights=np.zeros(gather_rows.shape, np.float32) if gather_rows.any() else None,
    )


def rope_positions_after(requests: Sequence[Request], positions: Sequence[int]) -> Int32 | None:
    """Return the M-RoPE positions [n_axes, n] of n requests with one row each, or None if they equal the positions."""
    each = [request.multimodal for request in requests]
    if all(inputs is None or inputs.mrope_positions is None for inputs in each):
        return None
    n_axes = max(inputs.n_axes for inputs in each if inputs is not None)
    own = (
        np.full((n_axes, 1), at, np.int32)
        if inputs is None or inputs.mrope_positions is None
        else inputs.rope_positions(at, at + 1)
        for inputs, at in zip(each, positions, strict=True)
    )
    return np.concatenate(list(own), axis=1)


def page_table(pages: Sequence[Int32]) -> Int32:
    """Return the page table of a batch, with one row per request."""
    if len(pages) == 1:
        only: Int32 = pages[0].reshape(1, -1).copy()
        return only
    table = np.full((len(pages), max(map(len, pages))), -1, np.int32)
    for i, row in enumerate(pages):
        table[i, : len(row)] = row
    return table
