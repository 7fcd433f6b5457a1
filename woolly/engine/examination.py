"""The Examination: measures a model and its machine, for a diagnosis."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from woolly._native import kernel_levels, measure_bandwidth
from woolly.engine.bench import Bench, StepCost, Work
from woolly.engine.bounds import PARTS, TARGET, Bounds, part_of, target_bits
from woolly.engine.diagnosis import Part, Run, Situation
from woolly.engine.load import available_memory, context_limit
from woolly.engine.machine import cpu_name, describe_model, mean_bits
from woolly.engine.probe import Probe
from woolly.errors import RequestError
from woolly.gguf import GGMLType, GGUFFile, open_gguf
from woolly.models import trace
from woolly.runtime import KV_TYPES, Options
from woolly.runtime.cpu import CpuBackend, CpuProgram
from woolly.runtime.threads import default_threads
from woolly.store import resolve

__all__ = ["Examination", "examine"]

_MOST_MEGABYTES = 1024  # of the buffer whose reading is timed
_MOST_AGAIN = 2 * 10**9  # bytes of weights that are prepared a second time to measure another number of threads


@dataclass(frozen=True)
class Examination:
    """What was measured, with the names of the model and the machine."""

    model: str
    cpu: str
    bandwidth_gbs: float
    bandwidth_megabytes: int  # how much was read: the model's size, or 1 GB
    main_type: str  # of most weights
    rate_one: float  # products per second of that type in the cache, for one row
    rate_many: float  # and for many
    many: int
    float_rate: float  # of f32, for as many tokens
    situation: Situation


def examine(
    model: str | os.PathLike[str],
    options: Options,
    *,
    n_prompt: int = 512,
    n_sequences: int = 8,
    depth: int | None = None,
    seconds: float = 10.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Examination:
    """Runs a prompt, one sequence and several, and probes the machine. Works are cut to about so many seconds each."""
    with open_gguf(resolve(model)) as file:
        plan = trace(file)
        limit = context_limit(file, plan)
        wanted = (depth or 0) + n_prompt + 64
        if wanted > limit:
            raise RequestError(
                f"{wanted} tokens are needed (cached, prompt and 64 more), but this model's context holds {limit}"
            )
        progress("loading")
        program = CpuBackend().compile(plan, file.tensors, options)
        try:
            return _Examiner(file, program, options, n_prompt, n_sequences, depth, seconds, progress).run()
        finally:
            program.close()


class _Examiner:
    """One examination under way."""

    def __init__(
        self,
        file: GGUFFile,
        program: CpuProgram,
        options: Options,
        n_prompt: int,
        n_sequences: int,
        depth: int | None,
        seconds: float,
        progress: Callable[[str], None],
    ) -> None:
        self.file, self.program, self.seconds, self.progress = file, program, seconds, progress
        self.n_prompt, self.n_sequences = n_prompt, n_sequences
        self.prompt_depth = depth or 0
        self.depth = n_prompt if depth is None else depth  # an answer comes after its prompt
        self.kv_type = options.kv_type or "f16"
        self.cores = default_threads()
        self.waited = 0.0  # share of the threads' time that they waited for a core
        self.disk_bytes = 0.0
        self.cores_seconds: tuple[float, float] | None = None
        self.options = options

    def run(self) -> Examination:
        works = self._works()
        bench = Bench(self.program, works, quick_fill=True)
        costs = []
        for work in works:
            self.progress(f"running {work.name}")
            costs.append(self._costs(bench, work))
        available = available_memory()
        self.progress("measuring the machine")
        limits = Bounds(self._bandwidth(self.program.threads), self._probe(self.program.threads, self.program.level))
        changes = self._changes(limits, works)
        runs = [self._run(work, seconds, steps, limits, changes) for work, (seconds, steps) in zip(works, costs)]  # noqa: B905
        return self._examination(runs, limits, available)

    def _works(self) -> list[Work]:
        """A prompt, tokens of one sequence, tokens of several; fewer where the model is slow."""
        trial = Bench(self.program, [Work("prompt", 32)], quick_fill=True)
        trial.first_token()
        token, row = trial.run(Work("generation", 1)), trial.run(Work("prompt", 32)) / 32
        n_prompt = self.n_prompt
        while n_prompt > 64 and n_prompt * row > self.seconds:
            n_prompt //= 2
        self.n_prompt = n_prompt
        n = max(4, min(32, int(self.seconds / 4 / token)))
        n_several = max(2, min(n, int(self.seconds / 4 / (token + row * self.n_sequences))))
        return [
            Work("prompt", n_prompt, 1, self.prompt_depth),
            Work("generation", n, 1, self.depth),
            Work("generation", n_several, self.n_sequences, self.depth),
        ]

    def _costs(self, bench: Bench, work: Work) -> tuple[float, list[StepCost]]:
        """Of the repetition whose time is the median of three; of the only one, where that takes half of the time."""
        bench.run(Work(work.kind, 2, work.n_sequences, work.depth))
        disk, waited, start = _disk_bytes(), _waited(), time.perf_counter()
        tried = [bench.costs(work)]
        repetitions = 1 if tried[0][0] > self.seconds / 2 else 3
        tried += [bench.costs(work) for _ in range(repetitions - 1)]
        taken = time.perf_counter() - start
        if work.kind == "generation" and work.n_sequences == 1:
            self.disk_bytes = (_disk_bytes() - disk) / (len(tried) * work.n_tokens)
            if self.program.threads <= self.cores:
                self.waited = min(0.9, (_waited() - waited) / (taken * self.program.threads))
        tried.sort(key=lambda one: one[0])
        return tried[len(tried) // 2]

    def _bandwidth(self, threads: int) -> float:
        """Bytes per second, over as much memory as the weights take: a small model may stay in the caches."""
        return statistics.median(measure_bandwidth(threads, self._megabytes) for _ in range(3)) * 1e9

    @property
    def _megabytes(self) -> int:
        return max(1, min(_MOST_MEGABYTES, round(self._weight_bytes / 1e6)))

    @property
    def _weight_bytes(self) -> int:
        """Of all matrices, each counted once."""
        return sum({m.name: m.n_bytes for m in self._matrices()}.values())

    @property
    def _used_share(self) -> float:
        """Of these bytes, what one token needs: of experts, those that it goes to."""
        used = {m.name: m.n_bytes * m.used_share for m in self._matrices()}
        return sum(used.values()) / max(1, self._weight_bytes)

    def _matrices(self) -> list[_Matrix]:
        return [
            _Matrix(w.name, w.type, math.prod(w.shape[:-1]), w.shape[-1], step.used_share(w))
            for step in self.program.fused.steps
            for w in step.matrices
        ]

    def _probe(self, threads: int, level: str) -> Probe:
        return Probe(threads, level, self.kv_type)

    def _changes(self, present: Bounds, works: Sequence[Work]) -> dict[str, Bounds]:
        """The machine after each change that could be made."""
        changes = {}
        if self.program.threads != self.cores:
            self.progress(f"measuring {self.cores} threads")
            probe = self._probe(self.cores, self.program.level)
            changes["threads"] = Bounds(self._bandwidth(self.cores), probe)
            self.cores_seconds = self._seconds_with_cores(works)
        if self.program.level != kernel_levels()[0]:
            probe = self._probe(self.program.threads, kernel_levels()[0])
            changes["kernels"] = Bounds(present.bandwidth, probe)
        if target_bits(self.file) < mean_bits(self.file):
            changes["quantization"] = Bounds(present.bandwidth, present.probe, smaller=True)
        return changes

    def _seconds_with_cores(self, works: Sequence[Work]) -> tuple[float, float] | None:
        """Prompt and token with a thread for each core, where memory allows to prepare all weights again."""
        if self._weight_bytes > min(_MOST_AGAIN, available_memory() / 2):
            return None
        options = replace(self.options, threads=self.cores)
        program = CpuBackend().compile(self.program.plan, self.file.tensors, options)
        try:
            bench = Bench(program, works[:2], quick_fill=True)
            bench.warm_up()
            prompt, one = (statistics.median(bench.run(work) for _ in range(3)) for work in works[:2])
        finally:
            program.close()
        return prompt, one / works[1].n_tokens

    def _run(
        self,
        work: Work,
        seconds: float,
        costs: Sequence[StepCost],
        machine: Bounds,
        changes: Mapping[str, Bounds],
    ) -> Run:
        """Times per run: of a whole prompt, or of one token of every sequence."""
        n_runs = 1 if work.kind == "prompt" else work.n_tokens
        n_tokens = min(work.n_tokens, self.program.max_rows) if work.kind == "prompt" else 1
        rows = n_tokens * work.n_sequences
        grouped: dict[str, list[StepCost]] = {name: [] for name in PARTS}
        for cost in costs:
            grouped[part_of(cost.step)].append(cost)
        parts = []
        for name, same in grouped.items():
            taken = sum(cost.seconds for cost in same)
            if name == "other":  # and what lies outside of all steps
                taken = max(0.0, seconds - sum(cost.seconds for cost in costs)) + taken
            if taken <= 0:
                continue
            parts.append(
                Part(
                    name,
                    taken / n_runs,
                    machine.limits(same, rows, n_runs, n_tokens),
                    sum(cost.n_bytes for cost in same) // n_runs,
                    sum(cost.macs for cost in same) // n_runs,
                    {change: other.limits(same, rows, n_runs, n_tokens) for change, other in changes.items()},
                )
            )
        return Run(work.name, work.n_tokens if work.kind == "prompt" else work.n_sequences, tuple(parts))

    def _examination(self, runs: Sequence[Run], machine: Bounds, available: int) -> Examination:
        prompt, one, several = runs
        sizes: dict[tuple[GGMLType, int], int] = {}
        for m in self._matrices():
            sizes[m.type, m.columns] = sizes.get((m.type, m.columns), 0) + m.rows * m.columns
        type, columns = max(sizes, key=lambda key: sizes[key])
        many = min(self.n_prompt, self.program.max_rows)
        weight_bytes, kept = self._weight_bytes, self.program.weight_stats().n_bytes
        missing = max(0, weight_bytes - kept) * self._used_share  # of what one token needs
        situation = Situation(
            prompt=prompt,
            one=one,
            several=several,
            threads=self.program.threads,
            cores=self.cores,
            cores_seconds=self.cores_seconds,
            level=self.program.level,
            best_level=kernel_levels()[0],
            bits=mean_bits(self.file),
            target_bits=target_bits(self.file),
            target_type=TARGET,
            kv_type=self.kv_type,
            kv_seconds=self._kv_seconds(one),
            depth=self.depth,
            weight_bytes=weight_bytes,
            kept_bytes=kept,
            packing_seconds=machine.probe.packing_seconds(type, columns) * missing if missing else 0.0,
            available_bytes=available,
            busy=self.waited,
            disk_bytes=self.disk_bytes,
            used_share=self._used_share,
        )
        return Examination(
            model=describe_model(self.file),
            cpu=cpu_name(),
            bandwidth_gbs=machine.bandwidth / 1e9,
            bandwidth_megabytes=self._megabytes,
            main_type=type.name,
            rate_one=machine.probe.linear_rate(type, columns, 1),
            rate_many=machine.probe.linear_rate(type, columns, many),
            many=many,
            float_rate=machine.float_rate(many),
            situation=situation,
        )

    def _kv_seconds(self, one: Run) -> dict[str, float]:
        """Attention by type of cache, where it takes enough of a token's time to matter."""
        attention = one.part("attention")
        if attention is None or attention.seconds < 0.1 * one.seconds:
            return {}
        steps = [step for step in self.program.fused.steps if step.op == "attend"]
        widths = {self.program.fused.values[step.inputs[0]].width for step in steps}
        dims = {layer.head_dim for layer in self.program.plan.cache}
        if len(widths) != 1 or len(dims) != 1 or any(step.integer("window") for step in steps):
            return {}
        found = {}
        for kv_type in KV_TYPES:
            if kv_type == "q8_0" and min(dims) % 32:
                continue
            self.progress(f"measuring attention with {kv_type}")
            probe = Probe(self.program.threads, self.program.level, kv_type)
            found[kv_type] = probe.attention_seconds(self.program.plan.cache, min(widths) // min(dims), self.depth)
        return found


@dataclass(frozen=True)
class _Matrix:
    name: str
    type: GGMLType
    rows: int
    columns: int
    used_share: float

    @property
    def n_bytes(self) -> int:
        return self.rows * self.type.row_bytes(self.columns)


def _waited() -> float:
    """Seconds that the threads of this process were ready to run and had no core; 0 where the system does not tell."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat") if sys.platform == "linux" else ():
        try:
            total += int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return total / 1e9


def _disk_bytes() -> int:
    """Bytes that this process had read from the disk so far; 0 where the system does not tell."""
    try:
        listing = Path("/proc/self/io").read_text()
        return int(next(line for line in listing.splitlines() if line.startswith("read_bytes:")).split()[1])
    except (OSError, StopIteration, ValueError):
        return 0
