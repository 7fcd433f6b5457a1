"""`woolly why`: shows where a model's time goes, how close it is to the machine's limits, and what would help most."""

from __future__ import annotations

import json
import textwrap
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import (
    AS_JSON,
    BACKEND,
    DEVICE,
    GPU_LAYERS,
    KV_TYPE,
    MODEL,
    NAMED,
    THREADS,
    WEIGHT_MEMORY,
    one_model,
)
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.screen import stdout_console

if TYPE_CHECKING:
    from woolly.measure.diagnosis import Advice, Run
    from woolly.measure.profiler import Profile

_COLUMNS, _NAME, _CELL = 100, 12, 29


@command(
    MODEL,
    NAMED,
    Option("--prompt -p", "Tokens of the prompt.", int, default=512),
    Option("--batch -b", "Concurrent sequences.", int, default=8),
    Option("--depth -d", "Cached tokens before generation.", int, shown="the prompt's"),
    THREADS,
    KV_TYPE,
    WEIGHT_MEMORY,
    BACKEND,
    DEVICE,
    GPU_LAYERS,
    Option("--plot", "Write a roofline plot (SVG) to this file.", Path, metavar="FILE"),
    AS_JSON,
)
def why(
    model: str | None,
    named: str | None,
    prompt: int,
    batch: int,
    depth: int | None,
    threads: int | None,
    kv_type: str | None,
    weight_memory: str | None,
    backend: str | None,
    device: str | None,
    gpu_layers: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show where the time goes, how close each step is to this machine's limits, and the most useful change.

    A step is bound by memory (its bytes at the measured read bandwidth) or by arithmetic (its products at the rate of
    its kernels with cached weights), whichever takes longer. On a GPU, the bandwidth is computed from memory clock and
    bus width, and steps with few rows are compared only with the bandwidth.
    """
    # Imported late, so that --help answers at once.
    from rich.console import Console
    from rich.live import Live

    from woolly.measure.profiler import profile_model
    from woolly.runtime import Options, backend_for, parse_size

    model = one_model("why", model, named)
    for option, value, least in (("-p", prompt, 2), ("-b", batch, 1), ("-d", depth or 0, 0)):
        if value < least:
            raise UsageError(f"{option} is {value}, expected at least {least}")
    options = Options(
        threads, parse_size("weight_memory", weight_memory), kv_type, device=device, gpu_layers=gpu_layers
    )
    if batch > options.rows():
        raise UsageError(f"-b is {batch}, but at most {options.rows()} sequences run concurrently")
    if plot is not None and not plot.parent.is_dir():
        raise UsageError(f"{plot} cannot be written: {plot.parent} is not a folder")
    stderr_console = Console(stderr=True)
    # Only drawn on reports: a spinner's thread would affect the measurement.
    line = Live(console=stderr_console, auto_refresh=False, transient=True) if stderr_console.is_terminal else None
    with line or nullcontext():
        found = profile_model(
            model,
            options,
            backend=backend_for(device, backend or "auto"),
            n_prompt=prompt,
            n_sequences=batch,
            depth=depth,
            progress=lambda text: None if line is None else line.update(text, refresh=True),
        )
    if plot is not None:
        plot.write_text(_plot(found), encoding="utf-8")
    click.echo(
        json.dumps(_as_json(found), indent=2)
        if as_json
        else "\n".join(_screen(found, min(_COLUMNS, stdout_console().width)))
    )


def _screen(found: Profile, width: int) -> list[str]:
    """Return the report: at most 40 lines of 100 columns, or more if three runs do not fit side by side."""
    from woolly.measure.diagnosis import advise

    s = found.situation
    advice = advise(s)
    head = [
        f"{found.model}, {s.token_bytes / 1e6:.0f} MB of weights read per token, cache {s.kv_type}",
        *_machine(found),
        f"identity    {found.identity}: equal on every machine that gives the same answers, bit for bit",
    ]
    lines = [part for line in head for part in _wrapped(line, width, "", " " * _NAME if line in head[2:] else "")]
    titled = [
        (f"prompt, {s.prompt.name}", s.prompt),
        (f"one answer, {s.one.name}", s.one),
        (f"{plural(s.several.n_tokens, 'answer')}, {s.several.name}", s.several),
    ]
    n_beside = max(1, (width - _NAME) // _CELL)
    for i in range(0, len(titled), n_beside):
        lines += ["", *_block(titled[i : i + n_beside])]
    gain = f" ({advice.gain:.2f}x)" if advice.gain > 1 else ""
    lines += ["", *_wrapped(f"What would help most: {advice.do}{gain}", width, ""), *_wrapped(advice.why, width)]
    if others := _others(found, advice):
        lines += ["", "Less would bring:"]
        for other in others:
            lines += _wrapped(f"{other.do} ({other.gain:.2f}x): {other.why}", width)
    return [line.rstrip() for line in lines]


def _machine(found: Profile) -> list[str]:
    """Describe the device and its limits."""
    s, rows = found.situation, plural(found.many, "row")
    if found.device:
        driver = f" ({found.driver})" if found.driver else ""
        return [
            f"{found.device}, kernels {s.level}{driver}, on a machine with {found.cpu}",
            f"memory      {found.bandwidth_gbs:,.1f} GB/s of its own",
            f"arithmetic  {found.main_type} {found.rate_many / 1e9:,.1f} billion products/s ({rows}), in its cache",
        ]
    return [
        f"{found.cpu}, {s.threads} of {plural(s.cores, 'core')}, kernels {s.level}",
        f"memory      {found.bandwidth_gbs:.1f} GB/s, read over {found.bandwidth_megabytes} MB",
        f"arithmetic  {found.main_type} {found.rate_one / 1e9:.1f} (1 row) and {found.rate_many / 1e9:.1f}"
        f" ({rows}), f32 {found.float_rate / 1e9:.1f} billion products/s, in the cache",
    ]


def _block(titled: list[tuple[str, Run]]) -> list[str]:
    """Return runs side by side."""
    runs = [run for _, run in titled]
    names = dict.fromkeys(part.name for run in runs for part in run.parts)
    return [
        _row("", [title for title, _ in titled]),
        _row("", ["time  bound by   reached"] * len(runs)),
        *(_row(name, [_cell(run, name) for run in runs]) for name in names),
        "",
        _row("tokens/s", [f"{run.rate:.1f}" for run in runs]),
        _row("at best", [f"{run.best_rate:.1f}, by {run.bound}" for run in runs]),
        _row("reached", [f"{run.limit / run.seconds:.0%}" for run in runs]),
    ]


def _others(found: Profile, chosen: Advice) -> list[Advice]:
    from woolly.measure.diagnosis import candidates

    return [a for a in candidates(found.situation) if a.kind != chosen.kind and a.gain >= 1.03][:2]


def _row(name: str, cells: list[str]) -> str:
    return f"{name:<{_NAME}}" + "".join(f"{cell:<{_CELL}}" for cell in cells)


def _cell(run: Run, name: str) -> str:
    part = run.part(name)
    if part is None:
        return ""
    share = f"{part.seconds / run.seconds:4.0%}"
    # Above the limit: other programs disturbed the measurement of the limit, or weights stayed in a cache.
    reached = f"{part.reached:.0%}" if part.reached <= 1 else ">100%"
    return f"{share}  {part.limits.bound:<10} {reached:>6}" if part.limits.bound else share


def _wrapped(text: str, width: int, first: str = "  ", rest: str = "  ") -> list[str]:
    return textwrap.wrap(text, width - 2, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _plot(found: Profile) -> str:
    from woolly.measure.diagnosis import advise
    from woolly.measure.roofline_plot import Mark, Roof, roofline_plot

    s = found.situation
    advice = advise(s)
    runs = (s.prompt, s.one, s.several)
    marks = [
        Mark(part.name, part.macs / part.n_bytes, part.macs / part.seconds / 1e9, i)
        for i, run in enumerate(runs)
        for part in run.parts
        if part.macs and part.n_bytes
    ]
    roofs = [Roof(f"{found.main_type}, {found.many} rows: {found.rate_many / 1e9:.0f}", found.rate_many / 1e9)]
    if not found.device:
        roofs.append(Roof(f"{found.main_type}, 1 row: {found.rate_one / 1e9:.0f}", found.rate_one / 1e9))
        roofs.append(Roof(f"f32: {found.float_rate / 1e9:.0f}", found.float_rate / 1e9))
    notes = [
        f"{_machine(found)[0]}; roofs: kernels on weights in the cache",
        f"What would help most: {advice.do}" + (f" ({advice.gain:.2f}x)" if advice.gain > 1 else ""),
    ]
    series = [f"{run.name}: {run.rate:.1f} tokens/s" for run in runs]
    return roofline_plot(f"Why {found.model} runs as it does", notes, found.bandwidth_gbs, roofs, series, marks)


def _as_json(found: Profile) -> dict[str, Any]:
    from woolly.measure.diagnosis import advise

    s = found.situation
    advice = advise(s)
    out = asdict(found)
    for name, run in (("prompt", s.prompt), ("one", s.one), ("several", s.several)):
        entry = out["situation"][name]
        entry |= {"rate": run.rate, "best_rate": run.best_rate, "bound": run.bound, "seconds": run.seconds}
        for part, values in zip(run.parts, entry["parts"], strict=True):
            values |= {"bound": part.limits.bound or None, "reached": part.reached if part.limits.bound else None}
        entry["best_rate"] = run.best_rate if run.limit > 0 else None
    out["advice"] = asdict(advice)
    out["other_advice"] = [asdict(other) for other in _others(found, advice)]
    return out
