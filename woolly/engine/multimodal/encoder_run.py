"""Resumable run of an encoder over a batch of inputs, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from woolly.engine.multimodal.encoder_cost import row_work
from woolly.runtime import Advances, Batch, CancelledRun, Program, SplitsRows, State, pages_for

if TYPE_CHECKING:
    from woolly.multimodal.encoder import PatchLayout
    from woolly.plan import Plan

_NOTHING = np.zeros((0, 0), np.float32)
_MAX_WORKS = 16  # number of input length combinations with cached work
_MIN_ROWS = 128  # minimum rows of a partial step; fewer rows would reload the same weight panels too often

Float32 = npt.NDArray[np.float32]
Number = TypeVar("Number", np.float32, np.int32)


class RunningStage:
    """Program of an encoder stage, with the state shared by its runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._state: State | None = None
        self._works: dict[tuple[int, ...], Sequence[float]] = {}  # keyed by the lengths of the inputs

    def state(self, n_pages: int) -> State:
        """Return a state with at least `n_pages` pages."""
        if self._state is None or self._state.n_pages < n_pages:
            self._state = self.program.new_state(n_pages)
        return self._state

    def work(self, lengths: Sequence[int]) -> Sequence[float]:
        """Return the multiply-adds per output row of each step, cached by the lengths of the inputs."""
        if tuple(lengths) not in self._works:
            if len(self._works) >= _MAX_WORKS:
                self._works.clear()
            self._works[tuple(lengths)] = _mean_work(self.program.running_plan, lengths)
        return self._works[tuple(lengths)]


class EncoderRun:
    """Run of an encoder that can pause between two steps of a plan, or within a long step."""

    def __init__(
        self,
        stages: Sequence[RunningStage],
        inputs: Sequence[tuple[Sequence[PatchLayout], Float32]],
        width: int,
        constants: Float32 | None = None,
    ) -> None:
        """Each input has a layout per stage, and patches. Several inputs must fit the rows of each stage together.

        Rows narrower than `width` are zero-padded; wider rows contain several layers (DeepStack). `constants` are rows
        appended to the rows of each input.
        """
        self._width = width
        self._constants = constants
        self._stages = stages
        self._layouts = [own for own, _ in inputs]
        self._values = [values for _, values in inputs]  # patches, or outputs of the previous stage
        self._stage = self._row = self._step = 0
        self._batch: Batch | None = None  # current batch
        self._work: Sequence[float] = ()  # multiply-adds per output row of each step, for the current batch
        self._cut = 0  # first output row of the next step that is not computed yet
        self._made: list[Float32] = []

    def advance(self, work: float) -> Float32 | None:
        """Compute about `work` multiply-adds. Return the result when the run is complete, otherwise None.

        The result has the concatenated rows of all inputs. Its values depend neither on the pauses nor on the other
        inputs of the batch. Each call computes at least some rows of a step.
        """
        left = work
        while True:
            try:
                rows, done = self._run_slice(max(left, 0.0))
            except CancelledRun:
                # Steps overwrite values that later steps do not read, so a partial step cannot be repeated. Restart at
                # the first step, which reads only the batch: results of earlier batches and stages are stored outside
                # the program.
                self._step, self._cut, self._batch = 0, 0, None
                return None
            if rows is not None:
                return rows
            left -= done
            if left <= 0:
                return None

    def _run_slice(self, work: float) -> tuple[Float32 | None, float]:
        """Run the steps that fit `work`, or part of a step; return the result and the work done."""
        stage, layouts = self._stages[self._stage], [own[self._stage] for own in self._layouts]
        program, n_rows = stage.program, sum(len(own.order) for own in layouts)
        last = min(self._row + program.max_rows, n_rows)
        if self._batch is None:
            self._batch = _batch_of(layouts, self._values, self._row, last)
            several = [len(own.order) for own in layouts] if len(layouts) > 1 else [last - self._row]
            self._work = stage.work(several)
        rows, done = self._run(program, self._batch, stage.state(int(self._batch.pages.max()) + 1), work)
        if self._step < len(program.running_plan.steps):
            return None, done
        self._made.append(rows.copy())
        self._row, self._step, self._batch = last, 0, None
        if last < n_rows:
            return None, done
        made = np.concatenate(self._made) if len(self._made) > 1 else self._made[0]
        parts = np.split(made, np.cumsum([len(own.outputs) for own in layouts])[:-1])
        self._values = [
            part if own.results is None else part[own.results] for own, part in zip(layouts, parts, strict=True)
        ]
        self._stage, self._row, self._made = self._stage + 1, 0, []
        if self._stage < len(self._stages):
            return None, done
        after = [] if self._constants is None else [self._constants]
        made = np.concatenate([rows for own in self._values for rows in (own, *after)])
        return np.pad(made, ((0, 0), (0, self._width - made.shape[1]))), done

    def _run(self, program: Program, batch: Batch, state: State, work: float) -> tuple[Float32, float]:
        """Run the steps that fit `work`, at least one step or part of it; return its output and the work done."""
        plan, step = program.running_plan, self._step
        each, n_rows = self._work[step], _rows_of(plan, step, batch)
        can_cut = isinstance(program, SplitsRows) and plan.steps[step].kind.cuts_rows
        if self._cut or (can_cut and n_rows * each > work):
            assert isinstance(program, SplitsRows)
            last = min(n_rows, self._cut + max(_MIN_ROWS, int(work / each) // _MIN_ROWS * _MIN_ROWS))
            rows, done = program.run_part(batch, state, step, self._cut, last), (last - self._cut) * each
            self._step, self._cut = (step + 1, 0) if last == n_rows else (step, last)
            return rows, done
        end, done = step + 1, n_rows * each
        while end < len(plan.steps) and done + (more := _rows_of(plan, end, batch) * self._work[end]) <= work:
            done += more
            end += 1
        if end < len(plan.steps) and isinstance(program, Advances):
            program.advance(batch, state, step, end)
            rows = _NOTHING
        else:
            rows = program.run(batch, state, step, end)
        self._step = end
        return rows, done


def _mean_work(plan: Plan, lengths: Sequence[int]) -> Sequence[float]:
    """Return the multiply-adds per output row of each step, averaged over the inputs."""
    works = [[n * each / sum(lengths) for each in row_work(plan, n)] for n in lengths]
    return [sum(own) for own in zip(*works, strict=True)]


def _rows_of(plan: Plan, step: int, batch: Batch) -> int:
    """Return the number of output rows of a step."""
    is_output = plan.values[plan.steps[step].outputs[-1]].rows == "output"
    return len(batch.output_rows) if is_output else batch.n_rows


def _batch_of(layouts: Sequence[PatchLayout], values: Sequence[Float32], first: int, last: int) -> Batch:
    """Return a batch of several complete inputs, or of rows of one input (all rows if the stage has attention)."""
    if len(layouts) == 1:
        (own,) = layouts
        n = last - first
        outputs = own.outputs[(own.outputs >= first) & (own.outputs < last)] - first
        batch = Batch.of([([0] * n, 0, range(pages_for(n)))], outputs.tolist())
        hidden = own.gather(values[0], first, last)
    else:
        lengths = [len(own.order) for own in layouts]
        ends = list(accumulate(map(pages_for, lengths), initial=0))
        sequences = [([0] * n, 0, range(*pages)) for n, pages in zip(lengths, pairwise(ends), strict=True)]
        starts = accumulate(lengths, initial=0)
        wanted = [own.outputs + start for own, start in zip(layouts, starts, strict=False)]
        batch = Batch.of(sequences, np.concatenate(wanted).tolist())
        gathered = (own.gather(its, 0, len(own.order)) for own, its in zip(layouts, values, strict=True))
        hidden = np.concatenate(list(gathered))
    if layouts[0].is_text:
        return replace(batch, tokens=hidden[:, 0].astype(np.int32))
    return replace(
        batch,
        hidden=hidden,
        rope_positions=_joined([own.rope_positions for own in layouts], 1),
        attn_ranges=_joined([own.attn_ranges for own in layouts]),
        gather_rows=_joined([own.gather_rows for own in layouts]),
        gather_weights=_joined([own.gather_weights for own in layouts]),
    )


def _joined(arrays: Sequence[npt.NDArray[Number] | None], axis: int = 0) -> npt.NDArray[Number] | None:
    """Concatenate an optional array over all inputs; either all inputs have it or no input has it."""
    there = [array for array in arrays if array is not None]
    return np.concatenate(there, axis=axis) if len(there) > 1 else there[0] if there else None
