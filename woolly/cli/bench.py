"""`woolly bench`: how fast a model runs here, beside what the machine's memory allows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woolly.errors import RequestError
from woolly.store import resolve

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from woolly.engine.bench import Measured, StepKind, Work

__all__ = ["bench"]

# More than the caches of a large server hold, so that it is memory that is measured.
_BANDWIDTH_MEGABYTES = 1024


def bench(
    model: Annotated[str, typer.Argument(help="A GGUF file or a model's name.", show_default=False)],
    prompt: Annotated[int, typer.Option("--prompt", "-p", help="Tokens of the prompt; 0 for none.")] = 512,
    generate: Annotated[int, typer.Option("--generate", "-n", help="Tokens to generate; 0 for none.")] = 128,
    batch: Annotated[str, typer.Option("--batch", help="Sequences that generate at once, such as 1,8.")] = "1",
    threads: Annotated[int | None, typer.Option("--threads", "-t", help="Threads.", show_default="all cores")] = None,
    reps: Annotated[int, typer.Option("--reps", "-r", help="Repetitions, of which the median counts.")] = 3,
    kv_type: Annotated[
        str | None,
        typer.Option("--kv-type", "-ctk", "--ctk", help="f16, f32 or q8_0: how the cache is kept.", show_default="f16"),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure tokens per second of prompt and generation, beside the read bandwidth that bounds generation.

    The share of the bandwidth counts weights and cache. It can exceed 100 % where a model fits the processor's caches.
    """
    # Imported late, so that --help answers at once.
    from rich.console import Console
    from rich.live import Live

    works = _works(prompt, generate, _batches(batch))
    if reps < 1:
        raise RequestError(f"--reps is {reps}, but at least 1 repetition is needed")
    chatter = Console(stderr=True)
    # Drawn only when told to: a spinner's thread would take time from what is measured.
    line = Live(console=chatter, auto_refresh=False, transient=True) if chatter.is_terminal else None

    def progress(text: str) -> None:
        if line is not None:
            line.update(text, refresh=True)

    with line or nullcontext():
        progress("loading")
        facts, measured, profiles = _measure(model, works, threads, kv_type, reps, profile, progress)
    if as_json:
        typer.echo(json.dumps(_as_json(facts, measured, profiles if profile else None), indent=2))
    else:
        _print(facts, measured, profiles, Console())


def _batches(text: str) -> list[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise RequestError(f"--batch is {text!r}, but whole numbers from 1 were expected, such as 1,8")
    return list(dict.fromkeys(sizes))


def _works(prompt: int, generate: int, batches: list[int]) -> list[Work]:
    from woolly.engine.bench import Work

    for option, n in (("-p", prompt), ("-n", generate)):
        if n < 0:
            raise RequestError(f"{option} is {n}, but a number of tokens was expected, or 0 for none")
    if prompt == generate == 0:
        raise RequestError("-p and -n are both 0, so there is nothing to measure")
    works = [Work("prompt", prompt)] if prompt else []
    return works + [Work("generation", generate, size) for size in batches if generate]


def _measure(
    model: str,
    works: list[Work],
    threads: int | None,
    kv_type: str | None,
    reps: int,
    profile: bool,
    progress: Callable[[str], None],
) -> tuple[dict[str, Any], list[Measured], dict[str, list[StepKind]]]:
    import time

    from woolly._native import measure_bandwidth
    from woolly.engine.bench import Bench, peak_mib
    from woolly.gguf import open_gguf
    from woolly.models import Keys, trace
    from woolly.runtime import Options
    from woolly.runtime.cpu import CpuBackend
    from woolly.text import Tokenizer

    path = resolve(model)
    options = Options(threads=threads, kv_type=kv_type)
    start = time.perf_counter()
    with open_gguf(path) as file:
        plan = trace(file)
        limit = Keys(file.metadata, plan.architecture).positive("context_length")
        longest = max(work.n_tokens for work in works)
        if longest > limit:
            raise RequestError(f"{longest} tokens were asked for, but this model's context holds {limit}")
        Tokenizer.from_metadata(file.metadata)  # a part of every start
        program = CpuBackend().compile(plan, file.tensors, options)
        subject = Bench(program, works)
        subject.first_token()
        load_s = time.perf_counter() - start
        progress("warming up")
        subject.warm_up()
        measured = subject.measure(reps, progress)
        peak = peak_mib()  # before the buffer of the bandwidth counts too
        progress("bandwidth")
        bandwidth = statistics.median(measure_bandwidth(program.threads, _BANDWIDTH_MEGABYTES) for _ in range(3))
        profiles = {work.name: subject.profile(work) for work in works} if profile else {}
    facts = {
        "model": str(path),
        "level": program.level,
        "threads": program.threads,
        "kv_type": kv_type or "f16",
        "load_s": round(load_s, 3),
        "peak_mib": round(peak),
        "bandwidth_gbs": round(bandwidth, 1),
    }
    return facts, measured, profiles


def _as_json(
    facts: dict[str, Any], measured: list[Measured], profiles: dict[str, list[StepKind]] | None
) -> dict[str, Any]:
    bandwidth = facts["bandwidth_gbs"]
    out = {
        **facts,
        **{m.work.name: round(m.rate, 2) for m in measured},
        "reps": {m.work.name: [round(rate, 2) for rate in m.rates] for m in measured},
        "bandwidth_share": {
            m.work.name: round(m.gb_per_second / bandwidth, 3) for m in measured if m.work.kind == "generation"
        },
    }
    if profiles is not None:
        out["profile"] = {
            name: [
                {
                    "step": kind.name,
                    "count": kind.n_steps,
                    "microseconds": round(kind.seconds * 1e6, 1),
                    "bytes": kind.n_bytes,
                    "gbs": round(kind.gb_per_second, 2),
                }
                for kind in kinds
            ]
            for name, kinds in profiles.items()
        }
    return out


def _print(
    facts: dict[str, Any], measured: list[Measured], profiles: dict[str, list[StepKind]], console: Console
) -> None:
    bandwidth = facts["bandwidth_gbs"]
    say = _sayer(console)
    say(facts["model"])
    say(f"kernels {facts['level']}, threads {facts['threads']}, cache {facts['kv_type']}")
    say(f"load to first token {facts['load_s']:.2f} s, peak memory {facts['peak_mib']} MiB")
    say(f"read bandwidth of this machine {bandwidth:.1f} GB/s\n")
    table = _table("", "tokens/s", "least", "most", "GB/s", "memory's limit", "reached")
    for m in measured:
        row = [m.work.name, f"{m.rate:.1f}", f"{min(m.rates):.1f}", f"{max(m.rates):.1f}"]
        if m.work.kind == "generation":
            share = m.gb_per_second / bandwidth
            row += [f"{m.gb_per_second:.1f}", f"{m.rate / share:.1f}", f"{share:.0%}"]
        table.add_row(*row)
    console.print(table)
    for name, kinds in profiles.items():
        whole = sum(kind.seconds for kind in kinds)
        table = _table(f"{name}, per run", "steps", "us", "share", "MB", "GB/s")
        for kind in kinds:
            row = [kind.name, str(kind.n_steps or ""), f"{kind.seconds * 1e6:.1f}", f"{kind.seconds / whole:.1%}"]
            if kind.n_bytes:
                row += [f"{kind.n_bytes / 1e6:.2f}", f"{kind.gb_per_second:.2f}"]
            table.add_row(*row)
        say("")
        console.print(table)


def _sayer(console: Console) -> Callable[[str], None]:
    """Plain text: no markup, no colours, no wrapping of long paths."""
    return lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(first, box=None, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
