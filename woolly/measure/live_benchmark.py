"""Live benchmark of the served model against the portable kernels, without stopping the server.

Every run of a program is a job between two engine steps. A request waits for at most one run, and never shares the
cores with a measurement.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar, get_args

from woolly.errors import RequestError
from woolly.gguf import GGUFFile, open_gguf
from woolly.llm import LLM
from woolly.measure.slot_rotation import SlotRotation
from woolly.plan import Plan, Step, Tracer
from woolly.runtime import Batch, Options, Program, State, get_backend, pages_for

TestType = Literal["prefill", "decode", "matmul", "rms_norm", "attention", "end_to_end"]
TEST_TYPES: tuple[str, ...] = get_args(TestType)

Measure = TypeVar("Measure")
Turn = Callable[[Callable[[], float]], float]  # calls a function between two steps of the engine

# Steps of the fused plan that a test times; all steps for other tests.
_COUNTED: Mapping[str, Callable[[Step], bool]] = {
    "matmul": lambda step: bool(step.matrices),
    "attention": lambda step: bool(step.kind.reads or step.kind.writes),
    "rms_norm": lambda step: step.op == "rms_norm",
}

_PROMPT_ROWS = 32
_DECODED = 8
_NORM_RUNS = 16  # the norms of one prompt only take some tenths of a millisecond

# Limits the number of compared layers, which is at least one. Scalar kernels take about 2 ns per byte of weights and
# row, so an iteration, for which requests may have to wait, takes some tenths of a second.
_MAX_BYTES_TIMES_ROWS = 160_000_000
_PAUSE = 0.002  # seconds, so that the engine thread can run a step


@dataclass(frozen=True)
class Benchmarked:
    """Result. `seconds` are measured with the served model."""

    test_type: str
    seconds: tuple[float, ...]  # seconds per iteration
    n_tokens: int  # tokens per iteration
    level: str  # kernel level
    baseline: str  # slowest level, supported by all CPUs
    threads: int
    speedup: float  # relative to the baseline, for the same layers
    n_compared: int  # iterations of the comparison
    compared_layers: int
    n_layers: int


@dataclass(frozen=True)
class _Subject:
    """Program, or its first steps, with a separate cache."""

    program: Program
    state: State
    last: int | None  # steps to run; None: all
    turn: Turn

    def seconds(self, test: str) -> float:
        """Return the seconds of one iteration."""
        return sum(self.turn(partial(self._run, batch, test)) for batch in _batches(test, self.program))

    def _run(self, batch: Batch, test: str) -> float:
        program, counts = self.program, _COUNTED.get(test)
        if counts is None:
            start = time.perf_counter()
            program.run(batch, self.state, 0, self.last)
            return time.perf_counter() - start
        with program.timed() as times:
            for _ in range(_repeats(test)):
                program.run(batch, self.state, 0, self.last)
        return sum(t for step, t in zip(program.running_plan.steps, times, strict=True) if counts(step)) / 1e9


def run_benchmark(llm: LLM, test: TestType, iterations: int, *, seconds: float, stop: threading.Event) -> Benchmarked:
    """Measure for about `seconds`, but at least one iteration. Blocks the calling thread."""
    program = llm.engine.program
    about, backend = program.about, get_backend(program.about.backend)
    if about.level is None:
        raise RequestError("the reference backend has no kernels to compare; serve without --no-optimized-inference")
    begin = time.monotonic()

    def turn(action: Callable[[], float]) -> float:
        if stop.is_set():
            raise RequestError("the benchmark was stopped")
        taken = llm.driver.call(lambda _: action())
        time.sleep(_PAUSE)
        return taken

    with open_gguf(llm.path) as file:
        plan = _norms(file, program.plan) if test == "rms_norm" else program.plan
        rows = sum(batch.n_rows for batch in _batches(test, program))
        last, n_compared = _slice(program, rows) if test != "rms_norm" else (None, 0)
        options = Options(threads=about.threads, max_rows=_PROMPT_ROWS)
        # A GPU has only one kernel level, and no memory for a second copy of the weights.
        levels = (about.level, backend.levels[-1]) if not about.device else (about.level,) if test == "rms_norm" else ()
        compiled = [
            # Weights are packed on first use, so only weights of executed steps are packed.
            _subject(backend.compile(plan, file.tensors, replace(options, level=level)), last, turn)
            for level in levels
        ]
        try:
            served = compiled[0] if test == "rms_norm" else _subject(program, None, turn)
            for subject in (served, *compiled):
                subject.seconds(test)  # packs weights and touches memory
            own = _repeat(lambda: served.seconds(test), iterations, begin + seconds / 2)
            pairs = (
                _repeat(lambda: [s.seconds(test) for s in compiled], iterations, begin + seconds)
                if len(compiled) == 2
                else []
            )
        finally:
            for subject in compiled:
                subject.program.close()
    fast, slow = (statistics.median(side) for side in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return Benchmarked(
        test_type=test,
        seconds=tuple(own),
        n_tokens=rows * _repeats(test),
        level=about.level,
        baseline=backend.levels[-1] if pairs else about.level,
        threads=about.threads,
        speedup=slow / fast if fast > 0 else 1.0,
        n_compared=len(pairs),
        compared_layers=n_compared if pairs else 0,
        n_layers=program.plan.n_layers,
    )


def _batches(test: str, program: Program) -> Iterable[Batch]:
    """Return the runs of an iteration: a prompt in one run, or tokens one by one."""
    n_prompt = 0 if test == "decode" else min(_PROMPT_ROWS, program.max_rows)
    n_decoded = _DECODED if test in ("decode", "end_to_end") else 0
    pages = range(pages_for(_PROMPT_ROWS + _DECODED))
    ids = [(10 + i) % program.plan.n_tokens for i in range(n_prompt + n_decoded)]
    slots = SlotRotation(program.plan)
    if n_prompt:
        yield Batch.of([(ids[:n_prompt], 0, pages)], slots=slots.next([0], 0))
    for i in range(n_prompt, n_prompt + n_decoded):
        yield Batch.of([(ids[i : i + 1], i, pages)], slots=slots.next([0], i))


def _repeats(test: str) -> int:
    """Return how often an iteration repeats a batch."""
    return _NORM_RUNS if test == "rms_norm" else 1


def _repeat(measure: Callable[[], Measure], iterations: int, deadline: float) -> list[Measure]:
    out = [measure()]
    while len(out) < iterations and time.monotonic() < deadline:
        out.append(measure())
    return out


def _slice(program: Program, rows: int) -> tuple[int | None, int]:
    """Return the end of the first complete layers that the baseline computes quickly, and their number."""
    n_layers, n_bytes = program.plan.n_layers, 0
    for index, step in enumerate(program.running_plan.steps):
        layer = next((int(w.name.split(".")[1]) for w in step.weights if w.name.startswith("blk.")), None)
        if step.matrices:
            n_bytes += step.row_bytes()
        if layer and n_bytes * rows > _MAX_BYTES_TIMES_ROWS and _begins(program, index, layer):
            return index, layer
    return None, n_layers


def _begins(program: Program, index: int, layer: int) -> bool:
    """Return True if a step is the first to read weights of its layer."""
    before = program.running_plan.steps[:index]
    return not any(w.name.startswith(f"blk.{layer}.") for step in before for w in step.weights)


def _subject(program: Program, last: int | None, turn: Turn) -> _Subject:
    state = program.new_state(pages_for(_PROMPT_ROWS + _DECODED), SlotRotation(program.plan).n_slots)
    return _Subject(program, state, last, turn)


def _norms(file: GGUFFile, plan: Plan) -> Plan:
    """Return a plan that chains all norms of the model's width, because fused norms are part of other steps."""
    embed = next(step for step in plan.steps if step.op == "embed")
    table = embed.weights[0]
    norms = [s for s in plan.steps if s.op == "rms_norm" and [w.shape for w in s.weights] == [table.shape[1:]]]
    names = {table.name, *(step.weights[0].name for step in norms)}
    tracer = Tracer(plan.architecture, {name: file.tensors[name] for name in names})
    x = tracer.embed(table.name.removesuffix(".weight"), width=table.shape[1])
    for step in norms:
        x = tracer.rms_norm(x, step.weights[0].name.removesuffix(".weight"), eps=step.number("eps"))
    tracer.output(tracer.output_rows(x))
    return tracer.plan()
