"""`woolly bench`: how fast a model runs here, in llama-bench's manner, beside what the machine's memory allows."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from woolly.cli.bench_formats import FORMATS, Record, write
from woolly.cli.busy import Others
from woolly.cli.number_list import numbers
from woolly.cli.options import ModelName, ModelOption, one_model
from woolly.cli.screen import results
from woolly.cli.usage import UsageError
from woolly.store import resolve

if TYPE_CHECKING:
    from woolly.engine.bench import Work
    from woolly.gguf import GGUFFile
    from woolly.runtime import Options

__all__ = ["bench"]

# More than the caches of a large server hold, so that it is memory that is measured.
_BANDWIDTH_MEGABYTES = 1024


def bench(
    model: ModelName = None,
    named: ModelOption = None,
    prompt: Annotated[
        list[str],
        typer.Option("--n-prompt", "--prompt", "-p", metavar="LIST", help="Tokens of the prompt; 0 for none."),
    ] = ["512"],  # noqa: B006
    generate: Annotated[
        list[str], typer.Option("--n-gen", "--generate", "-n", metavar="LIST", help="Tokens to generate; 0 for none.")
    ] = ["128"],  # noqa: B006
    depth: Annotated[
        list[str],
        typer.Option("--n-depth", "-d", metavar="LIST", help="Tokens that are in the cache before the clock starts."),
    ] = ["0"],  # noqa: B006
    batch: Annotated[
        list[str], typer.Option("--batch", "-b", metavar="LIST", help="Sequences that generate at once.")
    ] = ["1"],  # noqa: B006
    threads: Annotated[
        list[str] | None,
        typer.Option("--threads", "-t", metavar="LIST", help="Threads.", show_default="all physical cores"),
    ] = None,
    rows: Annotated[
        list[str],
        typer.Option("--ubatch-size", "-ub", metavar="LIST", help="Most tokens of a prompt that are computed at once."),
    ] = ["512"],  # noqa: B006
    kv_type: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-type",
            "-ctk",
            "--ctk",
            metavar="LIST",
            help="f16, f32 or q8_0: how the cache is kept.",
            show_default="f16",
        ),
    ] = None,
    reps: Annotated[int, typer.Option("--repetitions", "--reps", "-r", help="Repetitions of each test.")] = 5,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help=f"One of: {', '.join(FORMATS)}.", show_default="md")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--n-gpu-layers",
            "-ngl",
            "--main-gpu",
            "-mg",
            "--split-mode",
            "-sm",
            "--tensor-split",
            "-ts",
            "--device",
            "-dev",
            "--no-kv-offload",
            "-nkvo",
            "--override-tensor",
            "-ot",
            "--n-cpu-moe",
            "-ncmoe",
            "--rpc",
            "-rpc",
            hidden=True,
        ),
    ] = None,
    flash: Annotated[str | None, typer.Option("--flash-attn", "-fa", hidden=True)] = None,
    cache_v: Annotated[str | None, typer.Option("--cache-type-v", "-ctv", hidden=True)] = None,
    both: Annotated[str | None, typer.Option("-pg", hidden=True)] = None,
    loading: Annotated[str | None, typer.Option("--mmap", "-mmp", "--direct-io", "-dio", hidden=True)] = None,
    placing: Annotated[
        str | None,
        typer.Option("--cpu-mask", "-C", "--cpu-strict", "--poll", "--prio", "--numa", hidden=True),
    ] = None,
) -> None:
    """Measure tokens per second of prompts (pp) and generation (tg), as llama-bench does.

    Numbers may be lists such as 128,512 or 1-8*2, and options may be repeated: every combination is a test. pp512 is a
    prompt of 512 tokens, tg128x8 are 128 tokens of 8 sequences at once, and @ d4096 says that 4096 tokens were cached
    before. Neither tokenizing nor sampling is counted. The share of the read bandwidth counts weights and cache, and
    can exceed 100 % where a model fits the processor's caches. Unlike in llama-bench, -b is the number of sequences.
    """
    # Imported late, so that --help answers at once.
    from rich.console import Console
    from rich.live import Live

    _refuse(gpu=gpu, flash=flash, cache_v=cache_v, both=both, loading=loading, placing=placing)
    model = one_model("bench", model, named)
    if as_json and output not in (None, "json"):
        raise UsageError(f"--json is the same as -o json, but -o is {output!r}; leave out one of them")
    output = output or ("json" if as_json else "md")
    if output not in FORMATS:
        raise UsageError(f"-o is {output!r}; choose one of: {', '.join(FORMATS)}")
    if profile and output == "csv":
        raise UsageError("--profile has no place in csv; use -o md, table, json or jsonl")
    if reps < 1:
        raise UsageError(f"-r is {reps}, but at least 1 repetition is needed")
    works = _works(numbers("-p", prompt, 0), numbers("-n", generate, 0), numbers("-d", depth, 0), batch)
    settings = _settings(threads, kv_type, numbers("-ub", rows, 1))
    most, least = max(work.n_sequences for work in works), min(options.max_rows for options in settings)
    if most > least:
        raise UsageError(f"-b is {most}, but at most {least} sequences run at once")
    chatter = Console(stderr=True)
    # Drawn only when told to: a spinner's thread would take time from what is measured.
    line = Live(console=chatter, auto_refresh=False, transient=True) if chatter.is_terminal else None

    def progress(text: str) -> None:
        if line is not None:
            line.update(text, refresh=True)

    with line or nullcontext():
        with Others() as others:
            records = [
                record
                for i, options in enumerate(settings)
                for record in _measure(model, works, options, reps, profile, i > 0, progress)
            ]
        records = [replace(record, others_share=others.share) for record in records]
        progress("bandwidth")  # at the end, so that its buffer does not count as the model's memory
        records = _with_bandwidth(records)
    write(records, output, results())


def _refuse(**given: str | None) -> None:
    """One sentence for each option of llama-bench that has no meaning here."""
    reasons = {
        "gpu": "options of GPUs (-ngl, -sm, -mg, -ts, -dev, -nkvo, -ot, -ncmoe, -rpc) have no meaning here: Woolly"
        " computes on the CPU; leave them out",
        "flash": "-fa has no meaning here: attention always works as flash attention does; leave it out",
        "cache_v": "-ctv has no meaning here: K and V are kept in one type, which -ctk names",
        "both": "-pg is not offered; -p and -n measure the prompt and the generation, and -d generation after a prompt",
        "loading": "-mmp and -dio have no meaning here: files are always mapped; leave them out",
        "placing": "-C, --cpu-strict, --poll, --prio and --numa have no meaning here; use taskset, nice or numactl",
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(reasons[name])


def _works(prompts: list[int], generated: list[int], depths: list[int], batch: list[str]) -> list[Work]:
    from woolly.engine.bench import Work

    sizes = numbers("-b", batch, 1)
    works: list[Work] = []
    for depth in depths:
        works += [Work("prompt", n, 1, depth) for n in prompts if n]
        works += [Work("generation", n, size, depth) for n in generated if n for size in sizes]
    if not works:
        raise UsageError("-p and -n are both 0, so there is nothing to measure")
    if sizes != [1] and not any(generated):
        raise UsageError("-b is the number of sequences that generate at once, but -n is 0; leave -b out, or name -n")
    return works


def _settings(threads: list[str] | None, kv_types: list[str] | None, rows: list[int]) -> list[Options]:
    """Every combination for which the model is loaded anew."""
    from woolly.runtime import Options

    counts: list[int | None] = [*numbers("-t", threads, 1)] if threads else [None]
    types = [part for text in kv_types or [] for part in text.split(",")] or ["f16"]
    return [
        Options(threads=count, kv_type=kv_type, max_rows=most)
        for count, kv_type, most in itertools.product(counts, dict.fromkeys(types), rows)
    ]


def _measure(
    model: str,
    works: list[Work],
    options: Options,
    reps: int,
    profile: bool,
    again: bool,
    progress: Callable[[str], None],
) -> list[Record]:
    """All works under one setting; `again` where another came before, whose memory must not count."""
    import datetime
    import time

    from woolly.engine.bench import Bench, peak_mib, reset_peak
    from woolly.engine.machine import describe_model
    from woolly.gguf import open_gguf
    from woolly.models import trace
    from woolly.runtime.cpu import CpuBackend
    from woolly.text import Tokenizer

    path = resolve(model)
    has_peak = reset_peak() if again else True
    progress("loading")
    start = time.perf_counter()
    with open_gguf(path) as file:
        plan = trace(file)
        _check_context(file, plan.architecture, works)
        Tokenizer.from_metadata(file.metadata)  # a part of every start
        program = CpuBackend().compile(plan, file.tensors, options)
        subject = Bench(program, works)
        subject.first_token()
        load_s = time.perf_counter() - start
        progress("warming up")
        subject.warm_up()
        measured = subject.measure(reps, progress)
        peak = peak_mib() if has_peak else None
        when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return [
            Record(
                model_filename=str(path),
                model_type=describe_model(file),
                model_size=sum(tensor.n_bytes for tensor in file.tensors.values()),
                model_n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
                level=program.level,
                threads=program.threads,
                n_ubatch=options.max_rows,
                kv_type=options.kv_type or "f16",
                test_time=when,
                load_s=load_s,
                peak_mib=peak,
                bandwidth_gbs=0.0,
                measured=m,
                profile=tuple(subject.profile(m.work)) if profile else None,
            )
            for m in measured
        ]


def _with_bandwidth(records: list[Record]) -> list[Record]:
    from woolly._native import measure_bandwidth

    rates = {
        threads: statistics.median(measure_bandwidth(threads, _BANDWIDTH_MEGABYTES) for _ in range(3))
        for threads in {record.threads for record in records}
    }
    return [replace(record, bandwidth_gbs=rates[record.threads]) for record in records]


def _check_context(file: GGUFFile, architecture: str, works: list[Work]) -> None:
    from woolly.models import Keys

    limit = Keys(file.metadata, architecture).positive("context_length")
    longest = max(work.last for work in works)
    if longest > limit:
        raise UsageError(f"{longest} tokens were asked for, but this model's context holds {limit}")
