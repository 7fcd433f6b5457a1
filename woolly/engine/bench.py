"""The Bench: how fast a program computes, and how much of the memory's bandwidth that takes."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from woolly.errors import RequestError
from woolly.plan import Step
from woolly.runtime import PAGE_SIZE, Batch, pages_for
from woolly.runtime.cpu import CpuProgram

__all__ = ["Bench", "Measured", "StepKind", "Work", "peak_mib"]


@dataclass(frozen=True)
class Work:
    """One thing to measure, from an empty cache on: a prompt, or tokens one by one for several sequences at once."""

    kind: Literal["prompt", "generation"]
    n_tokens: int  # of each sequence
    n_sequences: int = 1

    @property
    def name(self) -> str:
        """As it is called in tables and JSON: pp512, tg128_b8."""
        return f"pp{self.n_tokens}" if self.kind == "prompt" else f"tg{self.n_tokens}_b{self.n_sequences}"

    @property
    def total(self) -> int:
        """Tokens of all sequences."""
        return self.n_tokens * self.n_sequences


@dataclass(frozen=True)
class Measured:
    """What some repetitions of one work took."""

    work: Work
    seconds: tuple[float, ...]  # of each repetition
    n_bytes: int  # weights and cache that one repetition reads

    @property
    def rate(self) -> float:
        """Tokens per second in the median repetition."""
        return self.work.total / statistics.median(self.seconds)

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of each repetition."""
        return tuple(self.work.total / s for s in self.seconds)

    @property
    def gb_per_second(self) -> float:
        """Weights and cache read per second, in 10^9 bytes, in the median repetition."""
        return self.n_bytes / statistics.median(self.seconds) / 1e9


@dataclass(frozen=True)
class StepKind:
    """All steps of a plan that do the same to weights of the same role and type."""

    name: str
    n_steps: int
    seconds: float  # per run of the program
    n_bytes: int  # weights and cache read per run of the program

    @property
    def gb_per_second(self) -> float:
        """Reading rate, in 10^9 bytes."""
        return self.n_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


class Bench:
    """A program with a cache that is large enough for the works to be measured."""

    def __init__(self, program: CpuProgram, works: Sequence[Work]) -> None:
        for work in works:
            if min(work.n_tokens, work.n_sequences) < 1:
                raise RequestError(f"{work.name} cannot be measured; at least 1 token and 1 sequence are needed")
            if work.n_sequences > program.max_rows:
                raise RequestError(
                    f"a batch of {work.n_sequences} sequences is too large; at most {program.max_rows} run at once"
                )
        self.program = program
        self.works = tuple(works)
        n_pages = max((work.n_sequences * pages_for(work.n_tokens) for work in works), default=1)
        self._state = program.new_state(n_pages)
        self._cache_bytes = self._state.n_bytes / (n_pages * PAGE_SIZE)  # of one token, over all layers

    def first_token(self) -> None:
        """Computes one token, which also prepares every weight."""
        self.run(Work("generation", 1))

    def warm_up(self) -> None:
        """A little of every work, so that none pays for memory that is touched for the first time."""
        for work in self.works:
            self.run(Work(work.kind, min(work.n_tokens, 32 if work.kind == "prompt" else 2), work.n_sequences))

    def run(self, work: Work) -> float:
        """Does the work once; gives the seconds it took."""
        per_sequence = pages_for(work.n_tokens)
        pages = [range(s * per_sequence, (s + 1) * per_sequence) for s in range(work.n_sequences)]
        n_vocab = self.program.plan.n_vocab
        ids = [(10 + i) % n_vocab for i in range(work.n_tokens)]
        start = time.perf_counter()
        for first, n in _runs(work, self.program.max_rows):
            # As in serving: of a prompt only the last token's logits are wanted.
            rows: list[int] | None = None if first + n == work.n_tokens or work.kind == "generation" else []
            batch = Batch.of([(ids[first : first + n], first, p) for p in pages], rows)
            self.program.run(batch, self._state)
        return time.perf_counter() - start

    def measure(self, reps: int, progress: Callable[[str], None] | None = None) -> list[Measured]:
        """Every work so many times, in turn, so that a disturbance of the machine does not hit one work alone."""
        seconds: dict[Work, list[float]] = {work: [] for work in self.works}
        for rep in range(reps):
            for work, taken in seconds.items():
                if progress is not None:
                    progress(f"{work.name}, {rep + 1} of {reps}")
                taken.append(self.run(work))
        return [Measured(work, tuple(taken), self.n_bytes(work)) for work, taken in seconds.items()]

    def n_bytes(self, work: Work) -> int:
        """Weights and cache that a work reads, each counted once per run of the program."""
        return sum(self._step_bytes(step, work) for step in self.program.fused.steps)

    def profile(self, work: Work) -> list[StepKind]:
        """Where the time of a work goes, most first; what lies outside all steps comes last."""
        self.program.take_times()
        self.program.profile(True)
        try:
            seconds = self.run(work)
            times = self.program.take_times()
        finally:
            self.program.profile(False)
        n_runs = sum(1 for _ in _runs(work, self.program.max_rows))
        grouped: dict[str, list[tuple[float, int]]] = {}
        for step, nanoseconds in zip(self.program.fused.steps, times, strict=True):
            grouped.setdefault(_kind(step), []).append((nanoseconds / 1e9, self._step_bytes(step, work)))
        kinds = [
            StepKind(name, len(steps), sum(t for t, _ in steps) / n_runs, sum(b for _, b in steps) // n_runs)
            for name, steps in grouped.items()
        ]
        outside = seconds / n_runs - sum(kind.seconds for kind in kinds)
        kinds.sort(key=lambda kind: kind.seconds, reverse=True)
        return [*kinds, StepKind("outside of steps", 0, max(0.0, outside), 0)]

    def _step_bytes(self, step: Step, work: Work) -> int:
        """Bytes that one step reads in all runs of a work. A prompt's attention is counted as one pass per run."""
        runs = list(_runs(work, self.program.max_rows))
        if step.op == "embed":
            weight = step.weights[0]
            return work.total * weight.type.row_bytes(weight.shape[1])
        if step.op == "attend":
            cache, window = self.program.plan.cache, step.integer("window")
            share = cache[step.integer("layer")].width / sum(layer.width for layer in cache)
            seen = sum(min(first + n, window + n - 1) if window else first + n for first, n in runs)
            return round(self._cache_bytes * share * seen * work.n_sequences)
        return self.program.step_bytes(step) * len(runs)


def peak_mib() -> float:
    """The most memory that this process held at once, mapped files included, in MiB."""
    # Where Linux tells it, not by getrusage: that also counts the parent from which the process was forked.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _runs(work: Work, max_rows: int) -> Iterator[tuple[int, int]]:
    """(first position, tokens per sequence) of every run of the program that a work takes."""
    step = max_rows if work.kind == "prompt" else 1
    for first in range(0, work.n_tokens, step):
        yield first, min(step, work.n_tokens - first)


def _kind(step: Step) -> str:
    """What the times of steps are summed by: the op, and of linears the roles and types of their matrices."""
    if step.op != "linears":
        return step.op
    matrices = step.by_role("weight")
    names = [weight.name.removesuffix(".weight").rpartition(".")[2] for weight in matrices]
    return f"{' '.join(names)} ({' '.join(dict.fromkeys(weight.type.name for weight in matrices))})"
