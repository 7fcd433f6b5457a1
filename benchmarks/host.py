"""Host time of a step: a stand-in for the model returns prepared rows immediately.

    python -m benchmarks.host smollm2

For 1, 8 and 64 sequences, microseconds of a step: of the samplers, of the rest of the engine, and of the chunks that
are handed to readers. With `--heads` the program ranks logits, as a GPU does, in place of handing over whole rows; the
rows that samplers ask for then are counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly import LLM, SamplingParams
from woolly.engine import Engine
from woolly.engine.threads.completion import Chunk
from woolly.runtime import Batch, Program, Ranking, State

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default": {},
    "top_p": {"top_k": 0, "top_p": 0.9, "min_p": 0.0},
    "min_p": {"top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "penalties": {"repeat_penalty": 1.1},
    "logprobs": {"logprobs": 5},
    "json": {"json_object": True},
}
N_ROWS = 64


class Clock:
    """Sums up the processor time that calls of a function take: other processes do not count."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.thread_time()
        result = self._function(*arguments)
        self.seconds += time.thread_time() - start
        return result

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Instant:
    """A program that computes nothing."""

    def __init__(self, program: Program) -> None:
        self._program = program
        n_vocab = program.plan.values[program.plan.steps[-1].outputs[-1]].width
        # About as peaked as what models compute.
        self._logits = np.random.RandomState(0).standard_exponential((N_ROWS, n_vocab)).astype(np.float32) * 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        return self._logits[: len(batch.output_rows)]


class InstantRanks(Instant):
    """Model stand-in whose top logits are ranked in advance."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        logits = self._logits.astype(np.float64)
        self._ids = np.argsort(-logits, axis=1, kind="stable")[:, :256].astype(np.int32)
        self._tops = np.take_along_axis(self._logits, self._ids, 1)
        self._sums = np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        self.n_rows = 0

    def rank(
        self, batch: Batch, state: State, n: int, first: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Ranking:
        rows, n = slice(len(batch.output_rows)), next(size for size in (1, 64, 256) if size >= n)
        is_sound = np.ones(len(batch.output_rows), np.bool_)
        if meanwhile is not None:
            meanwhile()
        return Ranking(self._ids[rows, :n], self._tops[rows, :n], self._sums[rows], is_sound, self._rows)

    def _rows(self, first: int, last: int) -> npt.NDArray[np.float32]:
        self.n_rows += last - first
        return self._logits[first:last]


def measured(llm: LLM, program: Any, n: int, n_tokens: int, params: dict[str, Any]) -> tuple[float, float, float]:
    """Medians over the steps in which all sequences answer, in microseconds."""
    engine = Engine(program, llm.tokenizer, ctx=512, kv_tokens=n * 512, chunk=512, max_running=n)
    samplers = []
    for i in range(n):
        prompt = llm.tokenize(f"Story number {i}, told by a sheep:")
        request = engine.new_request(prompt, SamplingParams(seed=i, max_tokens=n_tokens, **params))
        request.stop_ids = frozenset()
        samplers.append(Clock(request.sampler.next))
        request.sampler.next = samplers[-1]
        engine.add(request)
    rows = []
    while not engine.is_idle:
        start = time.thread_time()
        touched = engine.step()
        middle = time.thread_time()
        for request in touched:
            Chunk.take(request)
        end = time.thread_time()
        sampling = sum(clock.take() for clock in samplers)
        if len(touched) == n:
            rows.append((sampling, middle - start - sampling, end - middle))
    inner = rows[2:-1]
    return tuple(1e6 * statistics.median(column) for column in zip(*inner, strict=True))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("--tokens", type=int, default=40, help="tokens of each sequence (40)")
    parser.add_argument("--only", default=",".join(SETTINGS), help="settings, with commas between them (all)")
    parser.add_argument("--heads", action="store_true", help="the program ranks logits")
    arguments = parser.parse_args()
    with LLM(arguments.model, backend="cpu", threads=1) as llm:
        program = (InstantRanks if arguments.heads else Instant)(llm.engine.program)
        for name in arguments.only.split(","):
            for n in (1, 8, 64):
                n_before = getattr(program, "n_rows", 0)
                sampling, rest, chunks = measured(llm, program, n, arguments.tokens, SETTINGS[name])
                total = sampling + rest + chunks
                asked = f", {program.n_rows - n_before} rows asked for" if isinstance(program, InstantRanks) else ""
                print(
                    f"{name:10} {n:3} sequences: {total:8,.0f} us a step, {total / n:6.1f} a row"
                    f" (samplers {sampling / n:6.1f}, engine {rest / n:6.1f}, chunks {chunks / n:4.1f}){asked}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
