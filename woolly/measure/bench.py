"""Bench: measures the speed and memory bandwidth of a program."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from woolly.errors import RequestError
from woolly.measure.slot_rotation import SlotRotation
from woolly.plan import Load, Step
from woolly.runtime import PAGE_SIZE, Batch, Program, pages_for


@dataclass(frozen=True)
class Workload:
    """Benchmark workload: a prompt, or token generation for concurrent sequences, after `depth` cached tokens."""

    kind: Literal["prompt", "generation"]
    n_tokens: int  # per sequence
    n_sequences: int = 1
    depth: int = 0  # cached tokens per sequence before timing starts

    @property
    def name(self) -> str:
        """Name as in llama-bench: pp512, tg128, tg128 @ d4096; tg128x8 for 8 concurrent sequences."""
        name = f"{'pp' if self.kind == 'prompt' else 'tg'}{self.n_tokens}"
        name += f"x{self.n_sequences}" if self.n_sequences > 1 else ""
        return name + (f" @ d{self.depth}" if self.depth else "")

    @property
    def total(self) -> int:
        """Tokens of all sequences."""
        return self.n_tokens * self.n_sequences

    @property
    def last(self) -> int:
        """Cached tokens per sequence at the end."""
        return self.depth + self.n_tokens


@dataclass(frozen=True)
class Measured:
    """Times of all repetitions of a workload."""

    work: Workload
    seconds: tuple[float, ...]  # per repetition
    n_bytes: int  # weights and cache read per repetition

    @property
    def rate(self) -> float:
        """Tokens per second in the median repetition."""
        return self.work.total / statistics.median(self.seconds)

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each repetition."""
        return tuple(self.work.total / s for s in self.seconds)

    @property
    def deviation(self) -> float:
        """Standard deviation of the rates; 0 for a single repetition."""
        return statistics.stdev(self.rates) if len(self.seconds) > 1 else 0.0

    @property
    def gb_per_second(self) -> float:
        """Weights and cache read per second in the median repetition, in GB (10^9 bytes)."""
        return self.n_bytes / statistics.median(self.seconds) / 1e9


@dataclass(frozen=True)
class StepCost:
    """Cost of a step of a plan over all runs of a workload."""

    step: Step
    n_rows: int
    seconds: float
    n_bytes: int  # weights and cache read by the step
    macs: int  # multiply-adds


@dataclass(frozen=True)
class StepKind:
    """All steps of a plan with the same op, weight roles and weight types."""

    name: str
    n_steps: int
    seconds: float  # per run of the program
    n_bytes: int  # weights and cache read per run of the program

    @property
    def gb_per_second(self) -> float:
        """Weights and cache read per second, in GB (10^9 bytes)."""
        return self.n_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


class Bench:
    """Program with a cache that fits the workloads."""

    def __init__(self, program: Program, works: Sequence[Workload], *, quick_fill: bool = False) -> None:
        """If `quick_fill`, leave the cached values of `depth` uninitialized, which does not affect the speed."""
        if program.plan.result != "logits":
            raise RequestError(f"this model returns {program.plan.result}; only generative models can be benchmarked")
        if program.plan.diffusion is not None:
            raise RequestError("diffusion language models have no prompt and decoding phases to be benchmarked")
        for work in works:
            if min(work.n_tokens, work.n_sequences) < 1 or work.depth < 0:
                raise RequestError(f"{work.name} cannot be measured; use at least 1 token and 1 sequence")
            if work.n_sequences > program.max_rows:
                raise RequestError(
                    f"a batch of {work.n_sequences} sequences is too large; at most {program.max_rows} run concurrently"
                )
        self.program = program
        self.works = tuple(works)
        self._quick_fill = quick_fill
        # Pages per sequence for its longest workload.
        lengths = [
            max(pages_for(work.last) for work in works if work.n_sequences > s)
            for s in range(max((work.n_sequences for work in works), default=0))
        ] or [1]
        ends = list(accumulate(lengths))
        self._pages = [range(end - n, end) for n, end in zip(lengths, ends, strict=True)]
        self._filled = [0] * len(lengths)  # cached tokens per sequence
        # A run continues from the state of the previous run. Its depth may differ, but this does not affect the speed.
        self._slots = SlotRotation(program.plan, len(lengths))
        self._state = program.new_state(ends[-1], self._slots.n_slots)
        self._cache_bytes = self._state.page_bytes / PAGE_SIZE  # bytes per token, over all layers

    def first_token(self) -> None:
        """Compute one token, which also packs all weights."""
        self.run(Workload("generation", 1))

    def warm_up(self) -> None:
        """Run a short version of every workload, so that first accesses to memory are not timed."""
        for work in self.works:
            n = min(work.n_tokens, 32 if work.kind == "prompt" else 2)
            self.run(Workload(work.kind, n, work.n_sequences, work.depth))

    def run(self, work: Workload) -> float:
        """Run a workload once and return its seconds, without filling the cache."""
        self._fill(work)
        pages = self._pages[: work.n_sequences]
        ids = [self._ids(s, work.depth, work.last) for s in range(work.n_sequences)]
        start = time.perf_counter()
        for first, n in _runs(work, self.program.max_rows):
            # As in serving, compute logits for the last token of a prompt only.
            rows: list[int] | None = None if first + n == work.last or work.kind == "generation" else []
            own = slice(first - work.depth, first - work.depth + n)
            parts = [(tokens[own], first, p) for tokens, p in zip(ids, pages, strict=True)]
            slots = self._slots.next(range(work.n_sequences), first)
            self.program.run(Batch.of(parts, rows, slots=slots), self._state)
        taken = time.perf_counter() - start
        self._filled[: work.n_sequences] = [max(n, work.last) for n in self._filled[: work.n_sequences]]
        return taken

    def measure(self, reps: int, progress: Callable[[str], None] | None = None) -> list[Measured]:
        """Run every workload `reps` times, interleaved, so that a disturbance affects all of them."""
        seconds: dict[Workload, list[float]] = {work: [] for work in self.works}
        for rep in range(reps):
            for work, taken in seconds.items():
                if progress is not None:
                    progress(f"{work.name}, {rep + 1} of {reps}")
                taken.append(self.run(work))
        return [Measured(work, tuple(taken), self.n_bytes(work)) for work, taken in seconds.items()]

    def n_bytes(self, work: Workload) -> int:
        """Return the bytes of weights and cache that a workload reads, each counted once per program run."""
        return sum(self._step_bytes(step, work) for step in self.program.running_plan.steps)

    def costs(self, work: Workload) -> tuple[float, list[StepCost]]:
        """Run a workload once; return its seconds and the cost of each step over all runs."""
        self._fill(work)
        with self.program.timed() as times:
            seconds = self.run(work)
        return seconds, [
            StepCost(
                step,
                sum(load.total for load in loads),
                ns / 1e9,
                self._step_bytes(step, work),
                sum(step.cost(self.program.running_plan, load).products for load in loads),
            )
            for step, ns in zip(self.program.running_plan.steps, times, strict=True)
            for loads in [self._loads(step, work)]
        ]

    def profile(self, work: Workload) -> list[StepKind]:
        """Return the time by kind of step, longest first. The time outside of all steps comes last."""
        seconds, costs = self.costs(work)
        n_runs = sum(1 for _ in _runs(work, self.program.max_rows))
        grouped: dict[str, list[StepCost]] = {}
        for cost in costs:
            grouped.setdefault(_kind(cost.step), []).append(cost)
        kinds = [
            StepKind(name, len(same), sum(c.seconds for c in same) / n_runs, sum(c.n_bytes for c in same) // n_runs)
            for name, same in grouped.items()
        ]
        outside = seconds / n_runs - sum(kind.seconds for kind in kinds)
        kinds.sort(key=lambda kind: kind.seconds, reverse=True)
        return [*kinds, StepKind("outside of steps", 0, max(0.0, outside), 0)]

    def _ids(self, sequence: int, first: int, last: int) -> list[int]:
        """Return token ids by position. All workloads use the same tokens, so they share the cache."""
        n_vocab = self.program.plan.n_tokens
        return [token_at(i, sequence) % n_vocab for i in range(first, last)]

    def _fill(self, work: Workload) -> None:
        """Compute the cached tokens that a workload needs."""
        for s in range(work.n_sequences):
            while (first := self._filled[s]) < work.depth:
                last = min(first + self.program.max_rows, work.depth)
                rows = (self._ids(s, first, last), first, self._pages[s])
                batch = Batch.of([rows], [], slots=self._slots.next([s], first))
                if self._quick_fill:
                    for i, step in enumerate(self.program.running_plan.steps):
                        if step.kind.writes:
                            self.program.run(batch, self._state, i, i + 1)
                else:
                    self.program.run(batch, self._state)
                self._filled[s] = last

    def _loads(self, step: Step, work: Workload) -> list[Load]:
        """Return the load of a step in each run of a workload."""
        # A prompt only computes logits in the last run, for the last row of each sequence.
        if self.program.running_plan.values[step.outputs[-1]].rows == "output" and work.kind == "prompt":
            return [Load(work.n_sequences, work.last - 1, 1, self._cache_bytes)]
        return [Load(work.n_sequences, first, n, self._cache_bytes) for first, n in _runs(work, self.program.max_rows)]

    def _step_bytes(self, step: Step, work: Workload) -> int:
        """Return the bytes that a step reads in all runs of a workload. Attention of a prompt counts once per run."""
        return round(sum(step.cost(self.program.running_plan, load).n_bytes for load in self._loads(step, work)))


def token_at(position: int, sequence: int) -> int:
    """Return the token at a position. Sequences get different tokens, so they do not select the same experts."""
    return 10 + (position + 31 * sequence) % 1000


def _runs(work: Workload, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first position, tokens per sequence) of every run of a workload."""
    step = max(1, max_rows // work.n_sequences) if work.kind == "prompt" else 1
    for first in range(work.depth, work.last, step):
        yield first, min(step, work.last - first)


def _kind(step: Step) -> str:
    """Return the kind of a step: its op, or the roles and types of its matrices."""
    matrices = step.matrices
    if not matrices:
        return step.op
    names = [weight.name.removesuffix(".weight").rpartition(".")[2] for weight in matrices]
    return f"{' '.join(names)} ({' '.join(dict.fromkeys(weight.type.name for weight in matrices))})"
