"""The Bench: how fast a program computes, and how much of the memory's bandwidth that takes."""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from woolly.engine.windows import peak_bytes
from woolly.errors import RequestError
from woolly.plan import Step
from woolly.runtime import PAGE_SIZE, Batch, pages_for
from woolly.runtime.cpu import CpuProgram

__all__ = ["Bench", "Measured", "StepCost", "StepKind", "Work", "peak_mib", "reset_peak", "token_at"]


@dataclass(frozen=True)
class Work:
    """One thing to measure: a prompt, or tokens one by one for several sequences at once, after cached tokens."""

    kind: Literal["prompt", "generation"]
    n_tokens: int  # of each sequence
    n_sequences: int = 1
    depth: int = 0  # tokens of each sequence that are in the cache before the clock starts

    @property
    def name(self) -> str:
        """As in llama-bench's table: pp512, tg128, tg128 @ d4096; tg128x8 for 8 sequences at once."""
        name = f"{'pp' if self.kind == 'prompt' else 'tg'}{self.n_tokens}"
        name += f"x{self.n_sequences}" if self.n_sequences > 1 else ""
        return name + (f" @ d{self.depth}" if self.depth else "")

    @property
    def total(self) -> int:
        """Tokens of all sequences."""
        return self.n_tokens * self.n_sequences

    @property
    def last(self) -> int:
        """Tokens of each sequence that are in the cache at the end."""
        return self.depth + self.n_tokens


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
    def deviation(self) -> float:
        """Standard deviation of the rates; 0 for a single repetition."""
        return statistics.stdev(self.rates) if len(self.seconds) > 1 else 0.0

    @property
    def gb_per_second(self) -> float:
        """Weights and cache read per second, in 10^9 bytes, in the median repetition."""
        return self.n_bytes / statistics.median(self.seconds) / 1e9


@dataclass(frozen=True)
class StepCost:
    """One step of a plan in all runs of a work."""

    step: Step
    n_rows: int
    seconds: float
    n_bytes: int  # weights and cache that it reads
    macs: int  # products that it adds up


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

    def __init__(self, program: CpuProgram, works: Sequence[Work], *, quick_fill: bool = False) -> None:
        """With `quick_fill`, depths are filled with whatever numbers are at hand: as fast to read, but meaningless."""
        for work in works:
            if min(work.n_tokens, work.n_sequences) < 1 or work.depth < 0:
                raise RequestError(f"{work.name} cannot be measured; at least 1 token and 1 sequence are needed")
            if work.n_sequences > program.max_rows:
                raise RequestError(
                    f"a batch of {work.n_sequences} sequences is too large; at most {program.max_rows} run at once"
                )
        self.program = program
        self.works = tuple(works)
        self._quick_fill = quick_fill
        # Pages of each sequence, as many as the longest work that has it needs.
        lengths = [
            max(pages_for(work.last) for work in works if work.n_sequences > s)
            for s in range(max((work.n_sequences for work in works), default=0))
        ] or [1]
        ends = list(accumulate(lengths))
        self._pages = [range(end - n, end) for n, end in zip(lengths, ends, strict=True)]
        self._filled = [0] * len(lengths)  # tokens of each sequence whose K and V are in the cache
        self._state = program.new_state(ends[-1])
        self._cache_bytes = self._state.n_bytes / (ends[-1] * PAGE_SIZE)  # of one token, over all layers

    def first_token(self) -> None:
        """Computes one token, which also prepares every weight."""
        self.run(Work("generation", 1))

    def warm_up(self) -> None:
        """A little of every work, so that none pays for memory that is touched for the first time."""
        for work in self.works:
            n = min(work.n_tokens, 32 if work.kind == "prompt" else 2)
            self.run(Work(work.kind, n, work.n_sequences, work.depth))

    def run(self, work: Work) -> float:
        """Does the work once; gives the seconds it took, without those that fill the cache before."""
        self._fill(work)
        pages = self._pages[: work.n_sequences]
        ids = [self._ids(s, work.depth, work.last) for s in range(work.n_sequences)]
        start = time.perf_counter()
        for first, n in _runs(work, self.program.max_rows):
            # As in serving: of a prompt only the last token's logits are wanted.
            rows: list[int] | None = None if first + n == work.last or work.kind == "generation" else []
            own = slice(first - work.depth, first - work.depth + n)
            parts = [(tokens[own], first, p) for tokens, p in zip(ids, pages, strict=True)]
            self.program.run(Batch.of(parts, rows), self._state)
        taken = time.perf_counter() - start
        self._filled[: work.n_sequences] = [max(n, work.last) for n in self._filled[: work.n_sequences]]
        return taken

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

    def costs(self, work: Work) -> tuple[float, list[StepCost]]:
        """Does the work once; seconds that it took, and what each step of the plan cost in all its runs."""
        self._fill(work)
        self.program.take_times()
        self.program.profile(True)
        try:
            seconds = self.run(work)
            times = self.program.take_times()
        finally:
            self.program.profile(False)
        return seconds, [
            StepCost(step, self._rows(step, work), ns / 1e9, self._step_bytes(step, work), self._macs(step, work))
            for step, ns in zip(self.program.fused.steps, times, strict=True)
        ]

    def profile(self, work: Work) -> list[StepKind]:
        """Where the time of a work goes, most first; what lies outside all steps comes last."""
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
        """Tokens of the positions. Every work has the same, so what one leaves in the cache serves all others."""
        n_vocab = self.program.plan.n_vocab
        return [token_at(i, sequence) % n_vocab for i in range(first, last)]

    def _fill(self, work: Work) -> None:
        """Computes what must be in the cache before a work, where it is not."""
        for s in range(work.n_sequences):
            while (first := self._filled[s]) < work.depth:
                last = min(first + self.program.max_rows, work.depth)
                batch = Batch.of([(self._ids(s, first, last), first, self._pages[s])], [])
                if self._quick_fill:
                    for i, step in enumerate(self.program.fused.steps):
                        if step.op == "store":
                            self.program.run(batch, self._state, i, i + 1)
                else:
                    self.program.run(batch, self._state)
                self._filled[s] = last

    def _rows(self, step: Step, work: Work) -> int:
        """Rows that a step computes in all runs of a work."""
        if self.program.fused.values[step.outputs[-1]].rows == "output" and work.kind == "prompt":
            return work.n_sequences
        return work.total

    def _macs(self, step: Step, work: Work) -> int:
        """Products that a step adds up in all runs of a work: those of matrices, and of attention."""
        if step.matrices:
            each = sum(math.prod(w.shape) * step.used_share(w) for w in step.matrices)
            return self._rows(step, work) * round(each)
        if step.op == "attend":
            width, window = self.program.fused.values[step.inputs[0]].width, step.integer("window")
            seen = sum(min(p + 1, window) if window else p + 1 for p in range(work.depth, work.last))
            return 2 * width * seen * work.n_sequences
        return 0

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
        # Of a prompt, logits are computed in its last run alone.
        last_alone = work.kind == "prompt" and self.program.fused.values[step.outputs[-1]].rows == "output"
        if step.op == "moe":
            rows = [work.n_sequences] if last_alone else [n * work.n_sequences for _, n in runs]
            return sum(_moe_bytes(step, n) for n in rows)
        return self.program.step_bytes(step) * (1 if last_alone else len(runs))


def token_at(position: int, sequence: int) -> int:
    """The token that is measured there: at one position another for each sequence, so that experts are not shared."""
    return 10 + (position + 31 * sequence) % 1000


def peak_mib() -> float:
    """The most memory that this process held at once, mapped files included, in MiB."""
    # Where Linux tells it, not by getrusage: that also counts the parent from which the process was forked.
    if (peak := _status_mib("VmHWM")) is not None:
        return peak
    if sys.platform == "win32":
        return peak_bytes() / (1 << 20)
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def reset_peak() -> bool:
    """Frees what is not used any more and lets the peak begin anew from there; False where the system cannot."""
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # where the C library has no such function
        # Memory that was freed is not always given back: it would count as used by whatever comes next.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    peak, held = _status_mib("VmHWM"), _status_mib("VmRSS")
    # A system may take the request and do nothing. Both are counted per thread and summed up now and then.
    return peak is not None and held is not None and peak < held + 4


def _status_mib(name: str) -> float | None:
    """A size that Linux tells of this process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), None)


def _runs(work: Work, max_rows: int) -> Iterator[tuple[int, int]]:
    """(first position, tokens per sequence) of every run of the program that a work takes."""
    step = max(1, max_rows // work.n_sequences) if work.kind == "prompt" else 1
    for first in range(work.depth, work.last, step):
        yield first, min(step, work.last - first)


def _moe_bytes(step: Step, n_rows: int) -> int:
    """Bytes that a moe step reads for so many rows, if each row's experts are any, whatever those of the others."""
    total = 0.0
    for weight in step.weights:
        n_bytes = weight.type.row_bytes(weight.shape[-1]) * math.prod(weight.shape[:-1])
        total += n_bytes * (1 - (1 - step.used_share(weight)) ** n_rows)
    return round(total)


def _kind(step: Step) -> str:
    """What the times of steps are summed by: the op, and of linears and moe the roles and types of their matrices."""
    matrices = step.matrices
    if not matrices:
        return step.op
    names = [weight.name.removesuffix(".weight").rpartition(".")[2] for weight in matrices]
    return f"{' '.join(names)} ({' '.join(dict.fromkeys(weight.type.name for weight in matrices))})"
