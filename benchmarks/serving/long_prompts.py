"""Inter-token latency of a running answer while long prompts are computed, and the speed of these prompts.

    python -m benchmarks.serving.long_prompts MODEL.gguf --tokens 10000 --prompts 2 --targets 0 250

For each target (`--itl-target`, ms; 0 for none): the prompts are computed alone, then again while an answer runs. The
table has the median and the maximum time between tokens of the answer, the time to the first token of the last prompt,
and the prompt speed as a share of the speed alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from itertools import pairwise
from typing import Any

from woolly import LLM, SamplingParams


def main() -> None:
    """Print one line per target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=10_000, help="tokens of each prompt")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--targets", type=int, nargs="+", default=[0, 250])
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    print("target ms  alone s  with answer s  speed  ITL median ms  ITL max ms")
    for target in options.targets:
        print(measure(options, target), flush=True)


def measure(options: argparse.Namespace, target: int) -> str:
    """Return the line of a target."""
    ctx = options.tokens + 64
    given: dict[str, Any] = {} if options.threads is None else {"threads": options.threads}
    with LLM(options.model, ctx=ctx, kv_tokens=(options.prompts + 2) * ctx, itl_target=target, **given) as llm:
        compute(llm, options, seed=1, tokens=600)  # warms up
        alone = compute(llm, options, seed=2, tokens=options.tokens)
        times: list[float] = []
        is_running, is_done = threading.Event(), threading.Event()
        answer = threading.Thread(target=run_answer, args=(llm, times, is_running, is_done))
        answer.start()
        is_running.wait()
        begin = time.perf_counter()
        together = compute(llm, options, seed=3, tokens=options.tokens)
        end = time.perf_counter()
        is_done.set()
        answer.join()
    during = [t for t in times if begin <= t <= end]
    gaps = [(b - a) * 1000 for a, b in pairwise(during)] or [(end - begin) * 1000]
    shares = f"{alone:7.1f}  {together:13.1f}  {alone / together:5.2f}"
    return f"{target:9}  {shares}  {statistics.median(gaps):13.0f}  {max(gaps):10.0f}"


def compute(llm: LLM, options: argparse.Namespace, seed: int, tokens: int) -> float:
    """Return the seconds that the prompts take concurrently, each with one token of an answer."""
    source = random.Random(seed)
    n_vocab = llm.tokenizer.n_vocab
    prompts = [[source.randrange(300, n_vocab) for _ in range(tokens)] for _ in range(options.prompts)]
    begin = time.perf_counter()
    llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0.0))
    return time.perf_counter() - begin


def run_answer(llm: LLM, times: list[float], is_running: threading.Event, is_done: threading.Event) -> None:
    """Stream an answer and record when its tokens arrive, until `is_done`."""
    params = SamplingParams(max_tokens=llm.ctx - 16, temperature=0.0, ignore_eos=True)
    for _ in llm.generate([300, 301, 302], params, stream=True):
        times.append(time.perf_counter())
        if len(times) == 8:
            is_running.set()
        if is_done.is_set():
            break


if __name__ == "__main__":
    main()
