"""Tokens per second of the engine on a GPU: whole rows of logits copied, ranked there, and with async scheduling.

    python -m benchmarks.cuda.choose granite-8b.gguf

For 1, 8 and 64 sequences with default and greedy samplers: milliseconds of a step, those in the program, and tokens per
second. The text of a step is made while the next one runs, as for readers. Then what ranking takes beside the rest of a
step, in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from woolly import SamplingParams
from woolly.engine import Engine, Request
from woolly.engine.threads.completion import Chunk
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options, Program
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.cuda.device import open_device
from woolly.runtime.gpu.batch import BATCH
from woolly.runtime.gpu.top_k import Ranker
from woolly.tokens import Tokenizer

CTX = 768


class Timed:
    """A program whose time is counted."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.plan, self.running_plan, self.draft = program.plan, program.running_plan, program.draft
        self.max_rows, self.about, self.cancel, self.new_state = 512, program.about, program.cancel, program.new_state
        self.seconds = 0.0

    def run(self, *arguments: Any, **options: Any) -> Any:
        return self._timed(self._program.run, *arguments, **options)

    def _timed(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        out = call(*arguments, **options)
        self.seconds += time.perf_counter() - start
        return out


class Ranked(Timed):
    """Program whose logits are ranked on the device."""

    def rank(self, *arguments: Any, **options: Any) -> Any:
        return self._timed(self._program.rank, *arguments, **options)  # type: ignore[attr-defined]


class Async(Ranked):
    """Program with async scheduling: its time is the time that the host waits."""

    def has_queued(self, batch: Batch) -> bool:
        return bool(self._program.has_queued(batch))  # type: ignore[attr-defined]


def measured(
    program: Timed, tokenizer: Tokenizer, n: int, n_tokens: int, params: dict[str, Any]
) -> tuple[float, float]:
    """Seconds of a step, and of the program in it: medians over steps in which all sequences answer."""
    engine = Engine(program, tokenizer, ctx=CTX, kv_tokens=n * CTX, chunk=512, max_running=n)  # type: ignore[arg-type]
    random = np.random.RandomState(n)
    for i in range(n):
        prompt = random.randint(0, 30000, 60).tolist()
        settings = SamplingParams(seed=i, max_tokens=n_tokens, ignore_eos=True, **params)
        engine.add(engine.new_request(prompt, settings))
    steps, own = [], []
    changed: list[Request] = []

    def deliver() -> None:
        while changed:
            Chunk.take(changed.pop())

    engine.runner.meanwhile = deliver
    while not engine.is_idle:
        program.seconds, start = 0.0, time.perf_counter()
        touched = engine.step()
        changed += touched
        if len(touched) > 0.9 * n:
            steps.append(time.perf_counter() - start)
            own.append(program.seconds)
    return statistics.median(steps[2:-1]), statistics.median(own[2:-1])


def ranking(width: int, n_rows: int, n: int) -> float:
    """Microseconds of the two kernels."""
    device = open_device()
    batch = np.zeros(1, BATCH)
    batch["n_output"] = n_rows
    logits = np.random.RandomState(0).standard_exponential((n_rows, width)).astype(np.float32)
    places = [device.allocate(array.nbytes) for array in (batch, logits)]
    for place, array in zip(places, (batch, logits), strict=True):
        device.upload(place, array)
    ranker = Ranker(device, places[0], places[1], width, n_rows)
    ranker.queue(n, n_rows)
    marks = [device.mark()]
    for _ in range(20):
        ranker.queue(n, n_rows)
        marks.append(device.mark())
    device.wait()
    times = device.times(marks)
    device.close()
    return statistics.median(times) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each sequence (60)")
    arguments = parser.parse_args()
    for width in (49152, 151936):
        for n_rows in (1, 64):
            times = ", ".join(f"{n}: {ranking(width, n_rows, n):.1f}" for n in (1, 64, 256))
            print(f"ranking {n_rows} rows of {width}, with the copy, us: {times}", flush=True)
    with open_gguf(arguments.model) as file:
        program = CudaBackend().compile(trace(file), file.tensors, Options(max_rows=512))
        program.load_weights()
        tokenizer = Tokenizer.from_metadata(file.metadata)
        for name, params in (("default", {}), ("greedy", {"temperature": 0})):
            for n in (1, 8, 64):
                for label, kind in (("rows", Timed), ("heads", Ranked), ("async", Async)):
                    step, own = measured(kind(program), tokenizer, n, arguments.tokens, params)
                    print(
                        f"{name:8} {n:3} sequences, {label:5}: {step * 1e3:6.2f} ms a"
                        f" step, {own * 1e3:6.2f} in the program, {n / step:6,.0f} tok/s",
                        flush=True,
                    )
        program.close()


if __name__ == "__main__":
    main()
