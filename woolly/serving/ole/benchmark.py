"""The Benchmark: how fast the model runs that is being served, beside the portable kernels, while it goes on serving.

Every run of a program takes a turn between two steps of the engine, so that requests flow on, each waiting for one run
at most, and nothing that is measured shares the cores with them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, get_args

from woolly.errors import RequestError
from woolly.gguf import GGUFFile, open_gguf
from woolly.llm import LLM
from woolly.plan import Plan, Tracer
from woolly.runtime import Batch, Options, pages_for
from woolly.runtime.cpu import CpuBackend, CpuProgram, CpuState
from woolly.serving.ole.figures import row_bytes

__all__ = ["BASELINE", "TEST_TYPES", "Benchmarked", "TestType", "run_benchmark"]

BASELINE = "scalar"  # the level that is compiled for every processor

TestType = Literal["prefill", "decode", "matmul", "rms_norm", "attention", "end_to_end"]
TEST_TYPES: tuple[str, ...] = get_args(TestType)

Measure = TypeVar("Measure")
Turn = Callable[[Callable[[], float]], float]  # does something while the engine does not

# Steps of the fused plan whose times count for a test; of the others all do.
_OPS = {"matmul": {"linears", "moe"}, "attention": {"store", "attend"}, "rms_norm": {"rms_norm"}}

_PROMPT_ROWS = 32
_DECODED = 8
_NORM_RUNS = 16  # the norms of one prompt take some tenths of a millisecond

# Scalar kernels take about 2 ns per byte of weights and row: so much of the model is compared that an iteration takes
# some tenths of a second, and a run, for which others wait, no more. At least one layer is.
_MOST_BYTES_TIMES_ROWS = 160_000_000
_PAUSE = 0.002  # in which the engine's thread takes its turn


@dataclass(frozen=True)
class Benchmarked:
    """What was measured; seconds are those of the model as it is served."""

    test_type: str
    seconds: tuple[float, ...]  # of each iteration
    n_tokens: int  # of one iteration
    level: str  # of the kernels
    threads: int
    speedup: float  # over the baseline, on the same layers
    n_compared: int  # iterations of the comparison
    compared_layers: int
    n_layers: int


@dataclass(frozen=True)
class _Subject:
    """A program, or its first steps, with a cache of its own."""

    program: CpuProgram
    state: CpuState
    last: int | None  # steps to run; None: all
    turn: Turn

    def seconds(self, test: str) -> float:
        """One iteration."""
        ops = _OPS.get(test)
        return sum(self.turn(partial(self._run, batch, ops)) for batch in _batches(test, self.program))

    def _run(self, batch: Batch, ops: set[str] | None) -> float:
        program = self.program
        if ops is None:
            start = time.perf_counter()
            program.run(batch, self.state, 0, self.last)
            return time.perf_counter() - start
        program.take_times()
        program.profile(True)
        try:
            for _ in range(_repeats(ops)):
                program.run(batch, self.state, 0, self.last)
            times = program.take_times()
        finally:
            program.profile(False)
        return sum(t for step, t in zip(program.fused.steps, times, strict=True) if step.op in ops) / 1e9


def run_benchmark(llm: LLM, test: TestType, iterations: int, *, seconds: float, stop: threading.Event) -> Benchmarked:
    """Measures for about so many seconds at most, one iteration at least; takes the calling thread until then."""
    program = llm.engine.program
    if not isinstance(program, CpuProgram):
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
        levels = [_compile(plan, file, program.threads, level, last, turn) for level in (program.level, BASELINE)]
        try:
            served = levels[0] if test == "rms_norm" else _subject(program, None, turn)
            for subject in (served, *levels):
                subject.seconds(test)  # packs weights, touches memory
            own = _repeat(lambda: served.seconds(test), iterations, begin + seconds / 2)
            pairs = _repeat(lambda: [s.seconds(test) for s in levels], iterations, begin + seconds)
        finally:
            for subject in levels:
                subject.program.close()
    fast, slow = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Benchmarked(
        test_type=test,
        seconds=tuple(own),
        n_tokens=rows * _repeats(_OPS.get(test)),
        level=program.level,
        threads=program.threads,
        speedup=slow / fast if fast > 0 else 1.0,
        n_compared=len(pairs),
        compared_layers=n_compared,
        n_layers=len(program.plan.cache),
    )


def _batches(test: str, program: CpuProgram) -> Iterable[Batch]:
    """The runs of one iteration: a prompt in one run, tokens one by one."""
    n_prompt = 0 if test == "decode" else min(_PROMPT_ROWS, program.max_rows)
    n_decoded = _DECODED if test in ("decode", "end_to_end") else 0
    pages = range(pages_for(_PROMPT_ROWS + _DECODED))
    ids = [(10 + i) % program.plan.n_vocab for i in range(n_prompt + n_decoded)]
    if n_prompt:
        yield Batch.of([(ids[:n_prompt], 0, pages)])
    for i in range(n_prompt, n_prompt + n_decoded):
        yield Batch.of([(ids[i : i + 1], i, pages)])


def _repeats(ops: set[str] | None) -> int:
    """Runs of one batch."""
    return _NORM_RUNS if ops == _OPS["rms_norm"] else 1


def _repeat(measure: Callable[[], Measure], iterations: int, deadline: float) -> list[Measure]:
    out = [measure()]
    while len(out) < iterations and time.monotonic() < deadline:
        out.append(measure())
    return out


def _slice(program: CpuProgram, rows: int) -> tuple[int | None, int]:
    """The first steps, whole layers, that a run of the baseline gets done quickly; and how many layers they are."""
    n_layers, n_bytes = len(program.plan.cache), 0
    for index, step in enumerate(program.fused.steps):
        layer = next((int(w.name.split(".")[1]) for w in step.weights if w.name.startswith("blk.")), None)
        if step.op in _OPS["matmul"]:
            n_bytes += row_bytes(step)
        if layer and n_bytes * rows > _MOST_BYTES_TIMES_ROWS and _begins(program, index, layer):
            return index, layer
    return None, n_layers


def _begins(program: CpuProgram, index: int, layer: int) -> bool:
    """Whether a step is the first that reads weights of its layer."""
    before = program.fused.steps[:index]
    return not any(w.name.startswith(f"blk.{layer}.") for step in before for w in step.weights)


def _compile(
    plan: Plan,
    file: GGUFFile,
    threads: int,
    level: str,
    last: int | None,
    turn: Turn,
) -> _Subject:
    """A program of its own; weights are packed when a step first reads them, so only those of its steps are."""
    options = Options(threads=threads, level=level, max_rows=_PROMPT_ROWS)
    return _subject(CpuBackend().compile(plan, file.tensors, options), last, turn)


def _subject(program: CpuProgram, last: int | None, turn: Turn) -> _Subject:
    return _Subject(program, program.new_state(pages_for(_PROMPT_ROWS + _DECODED)), last, turn)


def _norms(file: GGUFFile, plan: Plan) -> Plan:
    """All norms of the model's width in a chain: in the fused plan they are parts of other steps."""
    embed = next(step for step in plan.steps if step.op == "embed")
    table = embed.weights[0]
    norms = [s for s in plan.steps if s.op == "rms_norm" and s.weights[0].shape == table.shape[1:]]
    names = {table.name, *(step.weights[0].name for step in norms)}
    tracer = Tracer(plan.architecture, {name: file.tensors[name] for name in names})
    x = tracer.embed(table.name.removesuffix(".weight"), width=table.shape[1])
    for step in norms:
        x = tracer.rms_norm(x, step.weights[0].name.removesuffix(".weight"), eps=step.number("eps"))
    tracer.output(tracer.output_rows(x))
    return tracer.plan()
