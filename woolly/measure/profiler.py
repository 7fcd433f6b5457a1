"""Profiler: measures a model and its machine for a diagnosis."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from woolly._native import measure_bandwidth
from woolly.engine.loading.context_length import context_limit
from woolly.errors import RequestError
from woolly.gguf import GGUFFile, open_gguf
from woolly.llm.bit_identity import identity_of
from woolly.machine.background_load import cpu_wait_seconds, disk_bytes
from woolly.machine.cores import default_threads
from woolly.machine.cpu import cpu_name
from woolly.machine.memory import available_memory
from woolly.measure.bench import Bench, StepCost, Workload
from woolly.measure.diagnosis import Run, Situation, StepGroup
from woolly.measure.kernel_probe import GpuProbe, Probe
from woolly.measure.time_bounds import PARTS, TARGET, Bounds, target_bits
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.quantize.describe import describe_model, mean_bits
from woolly.runtime import KV_TYPES, Options, Program, get_backend, kv_types_of
from woolly.store import resolve

_MAX_MEGABYTES = 1024  # maximum buffer size of the bandwidth measurement
_MAX_REPACKED_BYTES = 2 * 10**9  # maximum size of weights that are packed again to measure another number of threads


@dataclass(frozen=True)
class Profile:
    """Measurements, with the names of model and machine."""

    model: str
    cpu: str
    bandwidth_gbs: float
    bandwidth_megabytes: int  # size of the buffer: the model's size, or 1 GB
    main_type: str  # type of most weights
    rate_one: float  # multiply-adds per second of `main_type` with cached weights, for one row; 0: not limited
    rate_many: float  # the same for `many` rows
    many: int
    float_rate: float  # the same for f32 and `many` tokens
    situation: Situation
    identity: str = ""  # digest of the model (llm/bit_identity.py)
    device: str = ""  # GPU; empty: the CPU
    driver: str = ""  # version of the GPU driver


def profile_model(
    model: str | os.PathLike[str],
    options: Options,
    *,
    backend: str = "auto",
    n_prompt: int = 512,
    n_sequences: int = 8,
    depth: int | None = None,
    seconds: float = 10.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure a prompt, one sequence, several sequences, and the machine. A workload takes at most about `seconds`."""
    with open_gguf(resolve(model)) as file:
        plan = trace(file)
        limit = context_limit(file, plan)
        wanted = (depth or 0) + n_prompt + 64
        if wanted > limit:
            raise RequestError(
                f"{wanted} tokens are needed (cached, prompt and 64 more), but the model's context is {limit}",
                field="prompt",
                code="context_length",
                limit=limit,
                names=(),
            )
        progress("loading")
        program = get_backend(backend).compile(plan, file.tensors, options)
        try:
            return _Profiler(file, program, options, n_prompt, n_sequences, depth, seconds, progress).run()
        finally:
            program.close()


class _Profiler:
    """Measurement in progress."""

    def __init__(
        self,
        file: GGUFFile,
        program: Program,
        options: Options,
        n_prompt: int,
        n_sequences: int,
        depth: int | None,
        seconds: float,
        progress: Callable[[str], None],
    ) -> None:
        self.file, self.program, self.seconds, self.progress = file, program, seconds, progress
        self.about = program.about
        # If a GPU is selected by name, the level is not the one that `auto` would choose.
        levels = get_backend(self.about.backend).levels
        self.best_level = levels[0] if levels else self.about.level or self.about.backend
        self.level = self.about.level or self.best_level
        self.n_prompt, self.n_sequences = n_prompt, n_sequences
        self.prompt_depth = depth or 0
        self.depth = n_prompt if depth is None else depth  # an answer follows the prompt
        self.kv_type = options.kv_type or "f16"
        # With a GPU, the number of cores does not matter.
        self.cores = self.about.threads if self.about.device else default_threads()
        self.waited = 0.0  # share of time in which threads waited for a core
        self.disk_bytes = 0.0
        self.cores_seconds: tuple[float, float] | None = None
        self.options = options

    def run(self) -> Profile:
        works = self._works()
        bench = Bench(self.program, works, quick_fill=True)
        costs = []
        for work in works:
            self.progress(f"running {work.name}")
            costs.append(self._costs(bench, work))
        available = available_memory() if self.about.memory is None else self.about.memory
        self.progress("measuring the machine")
        limits = Bounds(self._bandwidth(self.about.threads), self._probe(self.about.threads, self.level))
        changes = self._changes(limits, works)
        runs = [self._run(work, seconds, steps, limits, changes) for work, (seconds, steps) in zip(works, costs)]  # noqa: B905
        found = self._examination(runs, limits, available)
        return replace(found, identity=identity_of(self.program, self.file).id)

    def _works(self) -> list[Workload]:
        """Return the workloads: a prompt, tokens of one sequence, tokens of several. Slow models get fewer tokens."""
        trial = Bench(self.program, [Workload("prompt", 32)], quick_fill=True)
        trial.first_token()
        token, row = trial.run(Workload("generation", 1)), trial.run(Workload("prompt", 32)) / 32
        n_prompt = self.n_prompt
        while n_prompt > 64 and n_prompt * row > self.seconds:
            n_prompt //= 2
        self.n_prompt = n_prompt
        n = max(4, min(32, int(self.seconds / 4 / token)))
        n_several = max(2, min(n, int(self.seconds / 4 / (token + row * self.n_sequences))))
        return [
            Workload("prompt", n_prompt, 1, self.prompt_depth),
            Workload("generation", n, 1, self.depth),
            Workload("generation", n_several, self.n_sequences, self.depth),
        ]

    def _costs(self, bench: Bench, work: Workload) -> tuple[float, list[StepCost]]:
        """Return the costs of the median of three repetitions, or of one if it takes half of the time limit."""
        bench.run(Workload(work.kind, 2, work.n_sequences, work.depth))
        disk, waited, start = disk_bytes(), cpu_wait_seconds(), time.perf_counter()
        tried = [bench.costs(work)]
        repetitions = 1 if tried[0][0] > self.seconds / 2 else 3
        tried += [bench.costs(work) for _ in range(repetitions - 1)]
        taken = time.perf_counter() - start
        if work.kind == "generation" and work.n_sequences == 1:
            self.disk_bytes = (disk_bytes() - disk) / (len(tried) * work.n_tokens)
            if self.about.threads <= self.cores and not self.about.device:
                self.waited = min(0.9, (cpu_wait_seconds() - waited) / (taken * self.about.threads))
        tried.sort(key=lambda one: one[0])
        seconds, costs = tried[len(tried) // 2]
        return (seconds, costs) if not self.about.device else self._as_graphs(bench, work, costs)

    def _as_graphs(self, bench: Bench, work: Workload, costs: list[StepCost]) -> tuple[float, list[StepCost]]:
        """Scale the costs to a run without step timing, which is faster on a GPU because the run is one graph."""
        seconds = statistics.median(bench.run(work) for _ in range(3))
        share = min(1.0, seconds / max(1e-9, sum(cost.seconds for cost in costs)))
        return seconds, [replace(cost, seconds=share * cost.seconds) for cost in costs]

    def _bandwidth(self, threads: int) -> float:
        """Measure bytes per second with a buffer of the weights' size, because a small model may fit in the caches."""
        if self.about.device_bandwidth is not None:
            return self.about.device_bandwidth
        return statistics.median(measure_bandwidth(threads, self._megabytes) for _ in range(3)) * 1e9

    @property
    def _megabytes(self) -> int:
        return max(1, min(_MAX_MEGABYTES, round(self._weight_bytes / 1e6)))

    @property
    def _weight_bytes(self) -> int:
        """Return the bytes of all matrices, each counted once."""
        return sum({m.name: m.n_bytes for m in self._matrices()}.values())

    @property
    def _used_share(self) -> float:
        """Return the share of matrix bytes that one token reads, with the selected experts only."""
        used = {m.name: m.n_bytes * m.used_share for m in self._matrices()}
        return sum(used.values()) / max(1, self._weight_bytes)

    def _matrices(self) -> list[_Matrix]:
        return [
            _Matrix(w.name, w.type, math.prod(w.shape[:-1]), w.shape[-1], step.used_share(w))
            for step in self.program.running_plan.steps
            for w in step.matrices
        ]

    def _probe(self, threads: int, level: str, kv_type: str = "") -> Probe:
        kind = GpuProbe if self.about.device else Probe
        return kind(threads, level, kv_type or self.kv_type, self.about.backend, self.options.device)

    def _changes(self, present: Bounds, works: Sequence[Workload]) -> dict[str, Bounds]:
        """Return the bounds after each possible change."""
        changes = {}
        if self.about.threads != self.cores:
            self.progress(f"measuring {self.cores} threads")
            probe = self._probe(self.cores, self.level)
            changes["threads"] = Bounds(self._bandwidth(self.cores), probe)
            self.cores_seconds = self._seconds_with_cores(works)
        if self.level != self.best_level:
            probe = self._probe(self.about.threads, self.best_level)
            changes["kernels"] = Bounds(present.bandwidth, probe)
        if target_bits(self.file) < mean_bits(self.file):
            changes["quantization"] = Bounds(present.bandwidth, present.probe, smaller=True)
        return changes

    def _seconds_with_cores(self, works: Sequence[Workload]) -> tuple[float, float] | None:
        """Return seconds of prompt and token with one thread per core, or None if memory cannot hold two copies."""
        if self._weight_bytes > min(_MAX_REPACKED_BYTES, available_memory() / 2):
            return None
        options = replace(self.options, threads=self.cores)
        program = get_backend(self.about.backend).compile(self.program.plan, self.file.tensors, options)
        try:
            bench = Bench(program, works[:2], quick_fill=True)
            bench.warm_up()
            prompt, one = (statistics.median(bench.run(work) for _ in range(3)) for work in works[:2])
        finally:
            program.close()
        return prompt, one / works[1].n_tokens

    def _run(
        self,
        work: Workload,
        seconds: float,
        costs: Sequence[StepCost],
        machine: Bounds,
        changes: Mapping[str, Bounds],
    ) -> Run:
        """Return the seconds per run of a complete prompt, or of one token per sequence."""
        n_runs = 1 if work.kind == "prompt" else work.n_tokens
        n_tokens = min(work.n_tokens, self.program.max_rows) if work.kind == "prompt" else 1
        rows = n_tokens * work.n_sequences
        grouped: dict[str, list[StepCost]] = {name: [] for name in PARTS}
        for cost in costs:
            grouped[cost.step.part].append(cost)
        parts = []
        for name, same in grouped.items():
            taken = sum(cost.seconds for cost in same)
            if name == "other":  # includes the time outside of all steps
                taken = max(0.0, seconds - sum(cost.seconds for cost in costs)) + taken
            if taken <= 0:
                continue
            parts.append(
                StepGroup(
                    name,
                    taken / n_runs,
                    machine.limits(same, rows, n_runs, n_tokens),
                    sum(cost.n_bytes for cost in same) // n_runs,
                    sum(cost.macs for cost in same) // n_runs,
                    {change: other.limits(same, rows, n_runs, n_tokens) for change, other in changes.items()},
                )
            )
        return Run(work.name, work.n_tokens if work.kind == "prompt" else work.n_sequences, tuple(parts))

    def _examination(self, runs: Sequence[Run], machine: Bounds, available: int) -> Profile:
        prompt, one, several = runs
        sizes: dict[tuple[GGMLType, int], int] = {}
        for m in self._matrices():
            sizes[m.type, m.columns] = sizes.get((m.type, m.columns), 0) + m.rows * m.columns
        type, columns = max(sizes, key=lambda key: sizes[key])
        many = min(self.n_prompt, self.program.max_rows)
        weight_bytes, kept = self._weight_bytes, self.program.weight_stats().n_bytes
        missing = max(0, weight_bytes - kept) * self._used_share  # bytes that one token reads
        situation = Situation(
            prompt=prompt,
            one=one,
            several=several,
            threads=self.about.threads,
            cores=self.cores,
            cores_seconds=self.cores_seconds,
            level=self.level,
            best_level=self.best_level,
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
        return Profile(
            model=describe_model(self.file),
            cpu=cpu_name(),
            bandwidth_gbs=machine.bandwidth / 1e9,
            bandwidth_megabytes=self._megabytes,
            main_type=type.name,
            rate_one=_known(machine.probe.linear_rate(type, columns, 1)),
            rate_many=_known(machine.probe.linear_rate(type, columns, many)),
            many=many,
            float_rate=_known(machine.float_rate(many)),
            situation=situation,
            device=self.about.device,
            driver=self.about.device_driver,
        )

    def _kv_seconds(self, one: Run) -> dict[str, float]:
        """Return the seconds of attention by cache type, empty if attention takes a small share of a token's time."""
        attention = one.part("attention")
        if attention is None or attention.seconds < 0.1 * one.seconds:
            return {}
        steps = [step for step in self.program.running_plan.steps if step.kind.reads]
        widths = {self.program.running_plan.values[step.inputs[0]].width for step in steps}
        layers = list(self.program.plan.paged.values())
        dims = {layer.k_dim for layer in layers}
        if (
            len(widths) != 1
            or dims != {layer.v_dim for layer in layers}
            or any(step.integer("window") for step in steps)
        ):
            return {}
        found = {}
        for kv_type, kept in KV_TYPES.items():
            if min(dims) % kept.block or (self.about.device and kv_type not in kv_types_of(self.about.backend)):
                continue
            self.progress(f"measuring attention with {kv_type}")
            probe = self._probe(self.about.threads, self.level, kv_type)
            found[kv_type] = probe.attention_seconds(layers, min(widths) // min(dims), self.depth)
        return found


def _known(rate: float) -> float:
    """Return the rate, or 0 if it is unbounded."""
    return rate if math.isfinite(rate) else 0.0


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
