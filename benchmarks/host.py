"""What the host takes of a step: all but the model, which answers at once with rows that were made before.

    python -m benchmarks.host smollm2

For 1, 8 and 64 sequences, microseconds of a step: of the samplers, of the rest of the engine, and of the chunks that
are handed to readers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.engine import Clock
from woolly import LLM, SamplingParams
from woolly.engine import Engine
from woolly.engine.completion import Chunk
from woolly.runtime import Batch, Program, State

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


class Instant:
    """A program that computes nothing."""

    def __init__(self, program: Program) -> None:
        self._program = program
        n_vocab = program.plan.values[program.plan.steps[-1].outputs[-1]].width
        # About as peaked as what models compute.
        self._logits = np.random.RandomState(0).standard_normal((N_ROWS, n_vocab)).astype(np.float32) * 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        return self._logits[: len(batch.output_rows)]


def measured(llm: LLM, program: Any, n: int, n_tokens: int, params: dict[str, Any]) -> tuple[float, float, float]:
    """Medians over the steps in which all sequences answer, in microseconds."""
    engine = Engine(program, llm.tokenizer, ctx=512, kv_tokens=n * 512, chunk=512, max_running=n)
    samplers = []
    for i in range(n):
        prompt = llm.tokenize(f"Story number {i}, told by a sheep:")
        request = engine.new_request(prompt, SamplingParams(seed=i, max_tokens=n_tokens, **params))
        request.stop_ids = frozenset()
        samplers.append(Clock(request.sampler.next))
        request.sampler.next = samplers[-1]  # type: ignore[method-assign]
        engine.add(request)
    rows = []
    while not engine.is_idle:
        start = time.perf_counter()
        touched = engine.step()
        middle = time.perf_counter()
        for request in touched:
            Chunk.take(request)
        end = time.perf_counter()
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
    arguments = parser.parse_args()
    with LLM(arguments.model, backend="cpu", threads=1) as llm:
        program = Instant(llm.engine.program)
        for name in arguments.only.split(","):
            for n in (1, 8, 64):
                sampling, rest, chunks = measured(llm, program, n, arguments.tokens, SETTINGS[name])
                total = sampling + rest + chunks
                print(
                    f"{name:10} {n:3} sequences: {total:8,.0f} us a step, {total / n:6.1f} a row"
                    f" (samplers {sampling / n:6.1f}, engine {rest / n:6.1f}, chunks {chunks / n:4.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
