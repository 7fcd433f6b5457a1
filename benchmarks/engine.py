"""Overhead of the engine over the program, and time to first token of a short request next to a long prompt.

    python -m benchmarks.engine smollm2 --batch 8

Overhead is the time of a step outside of the program and of the samplers, as a share of the step; sampling is counted
by itself. The short request arrives just after a step began, which is the worst moment; its time to the first token
is given in chunks, a chunk being what a step of the long prompt alone takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from woolly import LLM, SamplingParams
from woolly.engine import Engine


class Clock:
    """Sums up the time that calls of a function take."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return self._function(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - start

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def overhead(llm: LLM, batch: int, n_tokens: int, params: dict[str, Any]) -> dict[str, float]:
    """Medians over the steps in which all sequences answer."""
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=llm.ctx, kv_tokens=batch * llm.ctx)
    run = Clock(engine.program.run)
    engine.program.run = run  # type: ignore[method-assign]
    samplers = []
    for i in range(batch):
        prompt = llm.tokenize(f"Story number {i}, told by a sheep:")
        request = engine.new_request(prompt, SamplingParams(seed=i, max_tokens=n_tokens, ignore_eos=True, **params))
        samplers.append(Clock(request.sampler.next))
        request.sampler.next = samplers[-1]  # type: ignore[method-assign]
        engine.add(request)
    steps, native, sampling = [], [], []
    while not engine.is_idle:
        start = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - start)
        native.append(run.take())
        sampling.append(sum(clock.take() for clock in samplers))
    del engine.program.run
    # Without the first steps, which compute prompts and pack weights, and the last, which frees everything.
    inner = slice(4, -1)
    step, its_native, its_sampling = (statistics.median(values[inner]) for values in (steps, native, sampling))
    rest = statistics.median(s - n - t for s, n, t in zip(steps[inner], native[inner], sampling[inner], strict=True))
    return {
        "step_ms": step * 1e3,
        "native_ms": its_native * 1e3,
        "sampling_ms": its_sampling * 1e3,
        "engine_ms": rest * 1e3,
        "sampling_share": its_sampling / step,
        "engine_share": rest / step,
    }


def first_token(llm: LLM, n_long: int, n_short: int, chunk: int) -> dict[str, float]:
    """Time to the first token of short requests that arrive while a long prompt is computed."""
    engine = Engine(llm.engine.program, llm.tokenizer, ctx=llm.ctx, kv_tokens=2 * llm.ctx, chunk=chunk)
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    long = engine.add(engine.new_request([17 * i % llm.n_vocab for i in range(n_long)], params))
    chunks, waits = [], []
    while long.n_missing > 2 * engine.scheduler.chunk:
        engine.step()
        start = time.perf_counter()
        engine.step()
        chunks.append(time.perf_counter() - start)
        # Arrived while that step was at its beginning.
        prompt = [(29 * i + len(waits)) % llm.n_vocab for i in range(n_short)]
        short = engine.add(engine.new_request(prompt, params))
        while not short.output:
            engine.step()
        waits.append((time.perf_counter() - start) / chunks[-1])
    return {
        "chunk_ms": statistics.median(chunks) * 1e3,
        "first_token_chunks": statistics.median(waits),
        "first_token_chunks_most": max(waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a model's name")
    parser.add_argument("--batch", type=int, default=8, help="sequences at once (8)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each (64)")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--long", type=int, default=4096, help="tokens of the long prompt (4096)")
    parser.add_argument("--short", type=int, default=32, help="tokens of the short prompt (32)")
    parser.add_argument("--chunk", type=int, default=512, help="most rows of a step (512)")
    arguments = parser.parse_args()
    with LLM(arguments.model, threads=arguments.threads) as llm:
        report: dict[str, Any] = {
            "greedy": overhead(llm, arguments.batch, arguments.tokens, {"temperature": 0}),
            "default": overhead(llm, arguments.batch, arguments.tokens, {}),
        }
        if 4 * arguments.chunk < arguments.long < llm.ctx:
            report["short_beside_long"] = first_token(llm, arguments.long, arguments.short, arguments.chunk)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
