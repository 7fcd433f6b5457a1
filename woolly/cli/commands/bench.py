"""`woolly bench`: measures a model's speed as llama-bench does, with the memory bandwidth for comparison."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.cli.commands.bench_formats import FORMATS, Record, write
from woolly.cli.parse.command import command
from woolly.cli.parse.number_list import numbers
from woolly.cli.parse.options import BACKEND, DEVICE, GPU_LAYERS, MODEL, complete_model, one_model
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.screen import stdout_console
from woolly.llm.model_options import rows_of
from woolly.machine.background_load import OtherLoad
from woolly.store import resolve

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile
    from woolly.measure.bench import Workload
    from woolly.plan import Plan
    from woolly.runtime import Options

# More than the caches of a large server, to measure the memory.
_BANDWIDTH_MEGABYTES = 1024


@command(
    MODEL,
    Option(
        "--model -m",
        "The model, in place of the argument MODEL; may be repeated.",
        list,
        to="named",
        complete=complete_model,
    ),
    Option(
        "--n-prompt --prompt -p",
        "Tokens of the prompt; 0 for none.",
        list,
        to="prompt",
        default=("512",),
        metavar="LIST",
    ),
    Option(
        "--n-gen --generate -n",
        "Tokens to generate; 0 for none.",
        list,
        to="generate",
        default=("128",),
        metavar="LIST",
    ),
    Option(
        "--n-depth -d",
        "Cached tokens before the measurement.",
        list,
        to="depth",
        default=("0",),
        metavar="LIST",
    ),
    Option("--batch -b", "Concurrent sequences.", list, default=("1",), metavar="LIST"),
    Option("--threads -t", "Threads.", list, shown="all physical cores", metavar="LIST"),
    Option(
        "--ubatch-size -ub",
        "Maximum prompt tokens per step.",
        list,
        to="rows",
        shown="512, and 2048 on a GPU",
        metavar="LIST",
    ),
    Option("--kv-type -ctk --ctk", rows_of()["kv_type"].help, list, shown="f16", metavar="LIST"),
    BACKEND,
    DEVICE,
    GPU_LAYERS,
    Option("--repetitions --reps -r", "Repetitions of each test.", int, to="reps", default=5),
    Option("--output -o", f"One of: {', '.join(FORMATS)}.", shown="md, or table if that is too wide for the terminal"),
    Option("--json", "The same as -o json.", bool, to="as_json", default=False),
    Option("--profile", "Show where the time goes.", bool, default=False),
)
def bench(
    model: str | None,
    named: tuple[str, ...],
    prompt: tuple[str, ...],
    generate: tuple[str, ...],
    depth: tuple[str, ...],
    batch: tuple[str, ...],
    threads: tuple[str, ...],
    rows: tuple[str, ...],
    kv_type: tuple[str, ...],
    backend: str | None,
    device: str | None,
    gpu_layers: str | None,
    reps: int,
    output: str | None,
    as_json: bool,
    profile: bool,
) -> None:
    """Measure tokens per second of prompts (pp) and generation (tg), as llama-bench does.

    Numbers may be lists such as 128,512 or 1-8*2, and options may be repeated: every combination is a test. pp512 is a
    prompt of 512 tokens, tg128x8 generates 128 tokens in 8 concurrent sequences, and @ d4096 starts with 4096 cached
    tokens. Tokenizing and sampling are not counted. The share of the read bandwidth counts weights and cache, and can
    exceed 100 % if a model fits the CPU's caches. Unlike in llama-bench, -b is the number of sequences.
    """
    # Imported late, so that --help answers at once.
    from rich.console import Console
    from rich.live import Live

    models = list(dict.fromkeys(one_model("bench", model, name) for name in named or (None,)))
    if as_json and output not in (None, "json"):
        raise UsageError(f"--json is the same as -o json, but -o is {output!r}; omit one of them")
    output = output or ("json" if as_json else "")
    if output not in ("", *FORMATS):
        raise UsageError(f"-o is {output!r}; expected one of {', '.join(FORMATS)}")
    if profile and output == "csv":
        raise UsageError("--profile is not supported in csv; use -o md, table, json or jsonl")
    if reps < 1:
        raise UsageError(f"-r is {reps}, but at least 1 repetition is needed")
    works = _works(numbers("-p", prompt, 0), numbers("-n", generate, 0), numbers("-d", depth, 0), batch)
    settings = _settings(threads, kv_type, rows, device, gpu_layers)
    most, least = max(work.n_sequences for work in works), min(options.rows() for options in settings)
    if most > least:
        raise UsageError(f"-b is {most}, but at most {least} sequences run concurrently")
    stderr_console = Console(stderr=True)
    # Only drawn on reports: a spinner's thread would affect the measurement.
    line = Live(console=stderr_console, auto_refresh=False, transient=True) if stderr_console.is_terminal else None

    def progress(text: str) -> None:
        if line is not None:
            line.update(text, refresh=True)

    with line or nullcontext():
        with OtherLoad() as others:
            records = [
                record
                for i, (one, options) in enumerate(itertools.product(models, settings))
                for record in _measure(one, works, backend or "auto", options, reps, profile, i > 0, progress)
            ]
        records = [replace(record, others_share=others.share) for record in records]
        progress("bandwidth")  # last, so that its buffer does not count as the model's memory
        records = _with_bandwidth(records)
    write(records, output, stdout_console())


def _works(prompts: list[int], generated: list[int], depths: list[int], batch: Sequence[str]) -> list[Workload]:
    from woolly.measure.bench import Workload

    sizes = numbers("-b", batch, 1)
    works: list[Workload] = []
    for depth in depths:
        works += [Workload("prompt", n, 1, depth) for n in prompts if n]
        works += [Workload("generation", n, size, depth) for n in generated if n for size in sizes]
    if not works:
        raise UsageError("-p and -n are both 0, so there is nothing to measure")
    if sizes != [1] and not any(generated):
        raise UsageError("-b is the number of concurrent sequences, but -n is 0; omit -b, or set -n")
    return works


def _settings(
    threads: Sequence[str], kv_types: Sequence[str], rows: Sequence[str], device: str | None, gpu_layers: str | None
) -> list[Options]:
    """Return every combination of settings. The model is loaded once for each."""
    from woolly.runtime import Options

    counts: list[int | None] = [*numbers("-t", threads, 1)] if threads else [None]
    sizes: list[int | None] = [*numbers("-ub", rows, 1)] if rows else [None]
    types = [part for text in kv_types for part in text.split(",")] or ["f16"]
    return [
        Options(threads=count, kv_type=kv_type, max_rows=most, device=device, gpu_layers=gpu_layers)
        for count, kv_type, most in itertools.product(counts, dict.fromkeys(types), sizes)
    ]


def _measure(
    model: str,
    works: list[Workload],
    backend: str,
    options: Options,
    reps: int,
    profile: bool,
    again: bool,
    progress: Callable[[str], None],
) -> list[Record]:
    """Return the records of all workloads with one setting, without peak memory if `again`."""
    import datetime
    import time

    from woolly.gguf import open_gguf
    from woolly.machine.memory import peak_mib, reset_peak
    from woolly.measure.bench import Bench
    from woolly.models import trace
    from woolly.quantize.describe import describe_model
    from woolly.runtime import backend_for, get_backend
    from woolly.tokens import Tokenizer

    path = resolve(model)
    has_peak = reset_peak() if again else True
    progress("loading")
    start = time.perf_counter()
    with open_gguf(path) as file:
        plan = trace(file)
        _check_context(file, plan, works)
        program = get_backend(backend_for(options.device, backend)).compile(plan, file.tensors, options)
        program.load_weights()  # in the background, as in every start; the tokenizer is loaded meanwhile
        Tokenizer.from_metadata(file.metadata)
        subject = Bench(program, works)
        subject.first_token()
        load_s = time.perf_counter() - start
        progress("warming up")
        subject.warm_up()
        measured = subject.measure(reps, progress)
        peak = peak_mib() if has_peak else None
        about = program.about
        when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        return [
            Record(
                model_filename=str(path),
                model_type=describe_model(file),
                model_size=sum(tensor.n_bytes for tensor in file.tensors.values()),
                model_n_params=sum(tensor.n_elements for tensor in file.tensors.values()),
                backend=about.backend,
                device=about.device,
                level=about.level or about.backend,
                threads=about.threads,
                n_gpu_layers=_gpu_layers(options, has_gpu=bool(about.device)),
                n_ubatch=program.max_rows,
                kv_type=options.kv_type or "f16",
                test_time=when,
                load_s=load_s,
                peak_mib=peak,
                bandwidth_gbs=(about.device_bandwidth or 0.0) / 1e9,
                measured=m,
                profile=tuple(subject.profile(m.work)) if profile else None,
            )
            for m in measured
        ]


def _gpu_layers(options: Options, *, has_gpu: bool) -> int:
    """Return the number of layers requested on the GPU, or llama-bench's -1 if none was set."""
    if not has_gpu:
        return 0
    return options.gpu_layers if isinstance(options.gpu_layers, int) else -1


def _with_bandwidth(records: list[Record]) -> list[Record]:
    """Return the records with this machine's memory bandwidth. Records of a GPU already have the GPU's."""
    from woolly._native import measure_bandwidth

    rates = {
        threads: statistics.median(measure_bandwidth(threads, _BANDWIDTH_MEGABYTES) for _ in range(3))
        for threads in {record.threads for record in records if not record.device}
    }
    return [record if record.device else replace(record, bandwidth_gbs=rates[record.threads]) for record in records]


def _check_context(file: GGUFFile, plan: Plan, works: list[Workload]) -> None:
    from woolly.engine import context_limit

    limit = context_limit(file, plan)
    longest = max(work.last for work in works)
    if longest > limit:
        raise UsageError(f"{longest} tokens were requested, but this model's context is {limit}")
