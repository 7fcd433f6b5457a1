"""SplitProgram: segments of a plan run by the programs of several devices, in one process."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import PlanError, UnsupportedError
from woolly.machine.memory import available_memory
from woolly.plan.passes import slice_steps, split_points
from woolly.runtime.program import About, CancelledRun, DraftProgram, Program, WeightStats, checked_range
from woolly.runtime.split.state import SplitState
from woolly.runtime.top_logits import Ranking, Ranks, as_ranks

if TYPE_CHECKING:
    from woolly.plan import Plan, Step
    from woolly.runtime.batch import Batch
    from woolly.runtime.state import State

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Segment:
    """Range of a plan's steps that one part runs."""

    part: int
    first: int  # first step, as the plan counts them
    last: int  # exclusive


@dataclass(frozen=True)
class _Run:
    """Segment, numbered by the steps of its program."""

    part: int
    first: int  # first step of the program's running plan, which is the entrance if there is one
    last: int
    has_entrance: bool  # whether there is an additional step, which takes rows from another part

    @property
    def n_steps(self) -> int:
        return self.last - self.first - self.has_entrance


class SplitProgram:
    """Parts of a plan, each compiled by a separate backend. Rows pass from part to part as f32.

    A part may have several segments, because experts on the CPU interrupt the steps of a GPU.
    """

    def __init__(self, plan: Plan, segments: Sequence[Segment], compilers: Sequence[Callable[[Plan], Program]]) -> None:
        """`compilers` compile the steps of each part."""
        check_segments(plan, segments)
        self.plan = plan
        self._parts: list[Program] = []
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._carried: Float32 | None = None  # result of the last run, if it ended between two segments
        try:
            for index, compile in enumerate(compilers):
                own = slice_steps(plan, [(one.first, one.last) for one in segments if one.part == index])
                # A draft reads the same rows as the output head, so it is in the same part.
                own = replace(own, draft=plan.draft) if index == segments[-1].part else own
                self._parts.append(compile(own))
        except BaseException:
            self.close()
            raise
        self._runs = _runs(segments, [program.running_plan.steps for program in self._parts])
        steps = [
            step
            for run in self._runs
            for step in self._parts[run.part].running_plan.steps[run.first + run.has_entrance : run.last]
        ]
        self.running_plan = replace(plan, steps=tuple(steps))
        ends = list(itertools.accumulate(run.n_steps for run in self._runs))
        self._ranges = list(zip([0, *ends], ends, strict=False))  # step ranges of the running plan, by run
        self.max_rows = min(program.max_rows for program in self._parts)
        self.about = _about([program.about for program in self._parts], [program.plan for program in self._parts])
        head = self._parts[segments[-1].part]
        self.draft: DraftProgram | None = head.draft
        if (ranks := as_ranks(head)) is not None:
            self.rank = _ranking(weakref.WeakMethod(self._rank), ranks)

    def load_weights(self) -> None:
        """Start loading the weights of all parts in the background."""
        for program in self._parts:
            program.load_weights()

    def close(self) -> None:
        """Stop background work."""
        for program in self._parts:
            program.close()

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> SplitState:
        """Return an empty cache, in which each part stores its entries."""
        states = [program.new_state(n_pages, n_slots, window_pages) for program in self._parts]
        return SplitState(states, n_pages, n_slots)

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps in their parts and return a view of the last value, valid until the next run."""
        state = self._own(state)
        first, last = checked_range(first, last, len(self.running_plan.steps))
        with self._lock:
            self._is_cancelled = False
            value, self._carried = self._carried, None
            for run, (begin, end) in zip(self._runs, self._ranges, strict=True):
                at, until = max(first, begin), min(last, end)
                if at < until:
                    value = self._run(run, batch, state, value, at - begin, until - begin)
            assert value is not None
            if any(last == end for _, end in self._ranges[:-1]):
                self._carried = value
            return value

    def _run(self, run: _Run, batch: Batch, state: SplitState, value: Float32 | None, at: int, until: int) -> Float32:
        """Run steps `at` to `until` of a segment. Its first step takes the rows from the preceding segment."""
        batch, first = self._entered(run, batch, value, at)
        last = run.first + run.has_entrance + until
        out = self._parts[run.part].run(batch, state.parts[run.part], first, last)
        self._check_cancelled()
        return out

    def _rank(
        self, head: Ranks, batch: Batch, state: State, n: int, first: int, meanwhile: Callable[[], None] | None
    ) -> Ranking:
        """Run steps from `first` on. The part that computes logits also ranks them."""
        run, begin = self._runs[-1], self._ranges[-1][0]
        state = self._own(state)
        if first < begin:
            if meanwhile is not None:
                meanwhile()  # called early, because the parts before may take long
                meanwhile = None
            self.run(batch, state, first, begin)
        with self._lock:
            self._is_cancelled = self._is_cancelled and first < begin
            value, self._carried = self._carried, None
            batch, at = self._entered(run, batch, value, max(first, begin) - begin)
            ranking = head.rank(batch, state.parts[run.part], n, at, meanwhile)
            self._check_cancelled()
            return ranking

    def _entered(self, run: _Run, batch: Batch, value: Float32 | None, at: int) -> tuple[Batch, int]:
        """Return the batch for step `at` of a segment, and the number of the step in its part."""
        self._check_cancelled()
        if not run.has_entrance or at > 0:
            return batch, run.first + run.has_entrance + at
        if value is None:
            raise PlanError("a run needs values that no earlier run computed; start at an earlier step")
        return replace(batch, hidden=value, is_hidden_normed=True), run.first

    def _check_cancelled(self) -> None:
        if self._is_cancelled:
            raise CancelledRun("the computation was cancelled")

    def _own(self, state: State) -> SplitState:
        if not isinstance(state, SplitState) or len(state.parts) != len(self._parts):
            raise PlanError("the state belongs to another program; create one with new_state")
        return state

    def cancel(self) -> None:
        """Stop a run in progress in the part that runs. Any thread may call it."""
        self._is_cancelled = True
        for program in self._parts:
            program.cancel()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Time every run in the block. When it ends, the list has nanoseconds per step, without transfers."""
        times: list[int] = []
        each: list[list[int]] = []
        try:
            with ExitStack() as blocks:
                each = [blocks.enter_context(program.timed()) for program in self._parts]
                yield times
        finally:
            for run in self._runs:
                times += each[run.part][run.first + run.has_entrance : run.last]

    def weight_stats(self) -> WeightStats:
        """Return the sums of hits and misses of the prepared weights over all parts."""
        stats = [program.weight_stats() for program in self._parts]
        return WeightStats(*(sum(values) for values in zip(*(vars(one).values() for one in stats), strict=True)))


def _ranking(rank: weakref.WeakMethod[Callable[..., Ranking]], head: Ranks) -> Callable[..., Ranking]:
    """Return `Ranks.rank` of a program, ranked by its head. The weak reference lets the program free its GPU."""

    def ranked(
        batch: Batch, state: State, n: int, first: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Ranking:
        method = rank()
        assert method is not None, "the program is gone"
        return method(head, batch, state, n, first, meanwhile)

    return ranked


def check_segments(plan: Plan, segments: Sequence[Segment]) -> None:
    """Raise UnsupportedError unless the plan can be split there without sharing a state entry between parts."""
    edges = [(one.first, one.last) for one in segments]
    if [0, *(last for _, last in edges)] != [*(first for first, _ in edges), len(plan.steps)]:
        raise PlanError("the segments are not the steps of the plan")
    possible = split_points(plan)
    owners: dict[int, int] = {}
    for one in segments:
        if one.first not in possible:
            raise UnsupportedError(
                f"this {plan.architecture} model cannot be split there: {plan.steps[one.first].source} needs more than"
                " one value from before"
            )
        for step in plan.steps[one.first : one.last]:
            if "entry" in dict(step.attributes) and owners.setdefault(step.integer("entry"), one.part) != one.part:
                raise UnsupportedError(
                    f"this {plan.architecture} model cannot be split there: {step.source} reads the cache of a layer"
                    " in another part"
                )


def _runs(segments: Sequence[Segment], steps: Sequence[Sequence[Step]]) -> list[_Run]:
    """Return the segments as their programs run them. All except the first of the plan begin with an entrance."""
    edges: list[list[int]] = []
    for index, own in enumerate(steps):
        starts = [i for i, step in enumerate(own) if step.op == "hidden"]
        begins = any(one.first == 0 and one.part == index for one in segments)
        edges.append([*([0] if begins else []), *starts, len(own)])
    out: list[_Run] = []
    taken = [0] * len(steps)
    for one in segments:
        first, last = edges[one.part][taken[one.part] : taken[one.part] + 2]
        taken[one.part] += 1
        out.append(_Run(one.part, first, last, one.first > 0))
    return out


def _about(abouts: Sequence[About], plans: Sequence[Plan]) -> About:
    """Combine the `About` of the parts: all levels, and the cache memory until the first part is full."""
    all_bytes = sum(plan.bytes_per_token(1) for plan in plans)
    rooms: list[float] = []
    for about, plan in zip(abouts, plans, strict=True):
        own = plan.bytes_per_token(1)
        if own and any(one.memory is not None for one in abouts):
            weights = sum(weight.n_bytes for weight in plan.weights.values())
            left = max(0, available_memory() - weights) if about.memory is None else about.memory
            rooms.append(left * all_bytes / own)
    return replace(
        abouts[0],
        level="+".join(dict.fromkeys(about.level for about in abouts if about.level is not None)) or None,
        threads=max(about.threads for about in abouts),
        arena_bytes=sum(about.arena_bytes for about in abouts),
        memory=int(min(rooms)) if rooms else None,
        device=" and ".join(dict.fromkeys(about.device for about in abouts if about.device)),
        device_driver=" and ".join(dict.fromkeys(about.device_driver for about in abouts if about.device_driver)),
        arithmetic=abouts[0].arithmetic if len({about.bits for about in abouts}) == 1 else "",
    )
