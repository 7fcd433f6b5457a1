"""The soak: random requests for minutes on end. Run by scripts/soak, not by pytest.

A set of requests is computed one by one first. Then they arrive at random, in any number, and are left alone,
cancelled, given a deadline, or their stream is dropped. Whatever comes must be what came alone, or a beginning of it;
at the end every page and slot is free, and memory, threads and open files are what they were after a fifth of the time
and as many answers as there are kinds of requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cases.families import FAMILIES
from tests.cases.hybrids import HYBRIDS
from tests.cases.tiny import TINY, write_tiny
from woolly import LLM, AsyncLLM, Completion, SamplingParams
from woolly.store import pull

N_KINDS = 40
N_THREADS = 4  # which prepare requests
TINY_MODELS = {"tiny": TINY["llama"]} | FAMILIES | HYBRIDS
Kind = tuple[list[int], SamplingParams]
WORDS = [
    "sheep",
    "wool",
    "river",
    "stone",
    "the",
    "a",
    "of",
    "under",
    "seven",
    "green",
    "and",
    "then",
    "12",
    "345",
    ",",
    ".",
]


@dataclass(frozen=True)
class Size:
    ctx: int
    kv_tokens: int  # so few that requests preempt each other
    pause: float  # most seconds between arrivals


SMALL = Size(512, 640, 0.02)
USUAL = Size(512, 640, 0.2)


class Clock:
    """Seconds, without those in which the whole process stood still, as when it is stopped by a signal."""

    def __init__(self) -> None:
        self._paused = 0.0

    def now(self) -> float:
        return time.monotonic() - self._paused

    async def run(self) -> None:
        """Looks often: the loop is never busy for long, so a long gap is a pause."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            gap = time.monotonic() - before
            if gap > 5:
                self._paused += gap


CLOCK = Clock()


@dataclass
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest_wait: float = 0.0  # seconds between two chunks of a stream, or to the first


def make_kinds(llm: LLM, ctx: int, seed: int) -> list[Kind]:
    """Requests of mixed lengths, samplers and structures; half of the prompts share their beginning."""
    rng = random.Random(seed)
    shared = [rng.choice(WORDS) for _ in range(150)]
    samplers: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"repeat_penalty": 1.2, "presence_penalty": 0.3},
        {"mirostat": 2},
        {"dry_multiplier": 0.8, "xtc_probability": 0.3},
        {"regex": "[a-z ]{5,40}"},
        {"choice": ("yes", "no", "maybe")},
        {"json_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    ]
    kinds = []
    for i in range(N_KINDS):
        head = shared[: rng.randrange(150)] if rng.random() < 0.5 else []
        words = head + [rng.choice(WORDS) for _ in range(rng.choice((3, 10, 40, 200)))]
        params = SamplingParams(seed=i, max_tokens=rng.choice((1, 8, 30, 90)), **rng.choice(samplers))
        kinds.append((llm.tokenize(" ".join(words))[: ctx - 100], params))
    return kinds


async def one(
    llm: AsyncLLM, kind: tuple[list[int], SamplingParams], wanted: Completion, how: str, report: Report
) -> None:
    """One request from arrival to end, however it ends."""
    prompt, params = kind
    text = ""
    reason: str | None = None
    limit = random.randrange(1, 20)
    before = CLOCK.now()
    stream = llm.stream(prompt, params, timeout=random.uniform(0.05, 3) if how == "deadline" else None)
    n = 0
    async for chunk in stream:
        report.longest_wait = max(report.longest_wait, CLOCK.now() - before)
        before = CLOCK.now()
        text += chunk.text
        reason = chunk.finish_reason
        n += 1
        if n >= limit and how == "closed":
            await stream.aclose()
        elif n >= limit and how == "dropped":
            break
    del stream
    report.outcomes[reason or how] += 1
    right = text == wanted.text and reason == wanted.finish_reason
    beginning = text.rstrip("\ufffd")  # in place of a character whose bytes were not complete
    if not right and not (reason in (None, "cancelled") and how != "whole" and wanted.text.startswith(beginning)):
        report.wrong.append(f"{how}, {reason}: {text!r} in place of {wanted.text!r}")


async def soak(path: Path, size: Size, arguments: argparse.Namespace, say: Any) -> dict[str, Any]:
    say("computing each request alone")
    with LLM(path, ctx=size.ctx, kv_tokens=size.ctx, threads=arguments.threads) as llm:
        kinds = make_kinds(llm, size.ctx, arguments.seed)
        alone = [llm.generate(*kind) for kind in kinds]
    rng = random.Random(arguments.seed + 1)
    random.seed(arguments.seed + 2)
    report, tasks = Report(), set()
    # All threads from the beginning: the pool begins another for each piece of work that finds none idle.
    asyncio.get_running_loop().set_default_executor(pool := ThreadPoolExecutor(N_THREADS))
    together = threading.Barrier(N_THREADS)
    list(pool.map(lambda _: together.wait(), range(N_THREADS)))
    ticking = asyncio.create_task(CLOCK.run())
    options = {"ctx": size.ctx, "kv_tokens": size.kv_tokens, "speculation": "prompt_lookup"}
    async with AsyncLLM(path, threads=arguments.threads, **options) as llm:
        engine = llm.llm.engine
        start = last_said = CLOCK.now()
        settled: dict[str, int] = {}
        while (elapsed := CLOCK.now() - start) < arguments.seconds:
            for _ in range(rng.choice((0, 0, 1, 1, 2, 5)) if len(tasks) < arguments.most else 0):
                i = rng.randrange(N_KINDS)
                how = rng.choice(("whole", "whole", "whole", "closed", "dropped", "deadline", "task"))
                task = asyncio.create_task(one(llm, kinds[i], alone[i], how, report))
                tasks.add(task)
                if how == "task":
                    asyncio.get_running_loop().call_later(rng.uniform(0, 2), task.cancel)
            await asyncio.sleep(rng.uniform(0, size.pause))
            report = collect(tasks, report)
            if not settled and elapsed > arguments.seconds / 5 and report.outcomes.total() >= N_KINDS:
                settled = usage()
            if CLOCK.now() - last_said > 30:
                last_said = CLOCK.now()
                say(f"{elapsed:.0f} s: {dict(report.outcomes)}, {usage()}")
        while (tasks or not engine.is_idle) and CLOCK.now() - start < arguments.seconds + arguments.stall:
            await asyncio.sleep(0.05)
            collect(tasks, report)
        pools = (engine.scheduler.pages, *filter(None, engine.scheduler.visible_pages.pools))
        slots = engine.scheduler.slots
        end = usage()
        summary = {
            "seconds": round(CLOCK.now() - start),
            "outcomes": dict(report.outcomes),
            "wrong": len(report.wrong),
            "errors": report.wrong[:5],
            "unfinished": len(tasks),
            "pages_lost": sum(pool.n_pages - pool.n_free for pool in pools),
            "slots_lost": slots.n_slots - slots.n_free,
            "longest_wait_s": round(report.longest_wait, 2),
            "preemptions": engine.scheduler.n_preemptions,
            "prefix": vars(engine.prefix_stats()),
            "after_a_fifth": settled,
            "at_the_end": end,
        }
    ticking.cancel()
    grown = end["rss_mib"] - settled.get("rss_mib", end["rss_mib"])
    flat = grown <= arguments.growth and all(end[k] <= settled.get(k, end[k]) for k in ("threads", "files"))
    calm = report.longest_wait <= arguments.stall
    summary["ok"] = flat and calm and not (report.wrong or tasks or summary["pages_lost"] or summary["slots_lost"])
    return summary


def collect(tasks: set[asyncio.Task[None]], report: Report) -> Report:
    """Takes ended tasks out."""
    for task in [task for task in tasks if task.done()]:
        tasks.discard(task)
        if task.cancelled():
            report.outcomes["task cancelled"] += 1
        elif task.exception() is not None:
            report.wrong.append(repr(task.exception()))
    return report


def usage() -> dict[str, int]:
    """Memory, threads and files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    count = {what: len(list(Path("/proc/self", what).iterdir())) for what in ("task", "fd")}
    return {"rss_mib": pages * os.sysconf("SC_PAGE_SIZE") >> 20, "threads": count["task"], "files": count["fd"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long requests arrive (600)")
    model = (
        "a GGUF file, a name of the catalogue, tiny, or a tiny model of tests/cases/families.py, as gemma3 (smollm2)"
    )
    parser.add_argument("--model", default="smollm2", help=model)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--most", type=int, default=24, help="most requests at once (24)")
    parser.add_argument("--stall", type=float, default=60, help="most seconds without a sign of a request (60)")
    parser.add_argument("--growth", type=int, default=24, help="most MiB that memory may grow (24)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(f"soak: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        if arguments.model in TINY_MODELS:
            path = write_tiny(TINY_MODELS[arguments.model], Path(folder) / "tiny.gguf")
        else:
            path = Path(arguments.model) if arguments.model.endswith(".gguf") else pull(arguments.model)
        summary = asyncio.run(soak(path, SMALL if arguments.model in TINY_MODELS else USUAL, arguments, say))
    print(json.dumps(summary, indent=2))
    sys.exit(0 if summary["ok"] else 1)


if __name__ == "__main__":
    main()
