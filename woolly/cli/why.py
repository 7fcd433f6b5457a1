"""`woolly why`: where a model's time goes on this machine, how near that is to its limits, and what would help most."""

from __future__ import annotations

import json
import textwrap
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woolly.cli.options import AsJson, KvType, ModelName, ModelOption, Threads, WeightMemory, one_model
from woolly.cli.screen import results
from woolly.cli.sizes import counted
from woolly.cli.usage import UsageError
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.diagnosis import Advice, Run
    from woolly.engine.examination import Examination

__all__ = ["why"]

_COLUMNS, _NAME, _CELL = 100, 12, 29


def why(
    model: ModelName = None,
    named: ModelOption = None,
    prompt: Annotated[int, typer.Option("--prompt", "-p", help="Tokens of the prompt.")] = 512,
    batch: Annotated[int, typer.Option("--batch", "-b", help="Sequences that generate at once.")] = 8,
    depth: Annotated[
        int | None,
        typer.Option("--depth", "-d", help="Tokens that are in the cache before.", show_default="the prompt's"),
    ] = None,
    threads: Threads = None,
    kv_type: KvType = None,
    weight_memory: WeightMemory = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a roofline plot (SVG) to this file.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where the time goes, how close each step comes to this machine's limit, and the one thing to change.

    A step is bound by memory (its bytes at the measured read bandwidth) or by arithmetic (its products at the rate that
    its kernels attain on weights in the cache), whichever takes longer.
    """
    # Imported late, so that --help answers at once.
    from rich.console import Console
    from rich.live import Live

    from woolly.engine.examination import examine
    from woolly.runtime import Options, parse_size

    model = one_model("why", model, named)
    for option, value, least in (("-p", prompt, 2), ("-b", batch, 1), ("-d", depth or 0, 0)):
        if value < least:
            raise UsageError(f"{option} is {value}, but at least {least} was expected")
    options = Options(threads=threads, kv_type=kv_type, weight_memory=parse_size("weight_memory", weight_memory))
    if batch > options.max_rows:
        raise UsageError(f"-b is {batch}, but at most {options.max_rows} sequences run at once")
    if plot is not None and not plot.parent.is_dir():
        raise UsageError(f"{plot} cannot be written: {plot.parent} is not a folder")
    chatter = Console(stderr=True)
    # Drawn only when told to: a spinner's thread would take time from what is measured.
    line = Live(console=chatter, auto_refresh=False, transient=True) if chatter.is_terminal else None
    try:
        with line or nullcontext():
            found = examine(
                model,
                options,
                n_prompt=prompt,
                n_sequences=batch,
                depth=depth,
                progress=lambda text: None if line is None else line.update(text, refresh=True),
            )
    except RequestError as error:  # more tokens than the model's context holds, more threads than there are
        raise UsageError(str(error)) from error
    if plot is not None:
        plot.write_text(_plot(found), encoding="utf-8")
    typer.echo(
        json.dumps(_as_json(found), indent=2) if as_json else "\n".join(_screen(found, min(_COLUMNS, results().width)))
    )


def _screen(found: Examination, width: int) -> list[str]:
    """At most 40 lines of 100 columns; more where fewer columns hold not all three runs side by side."""
    from woolly.engine.diagnosis import advise

    s = found.situation
    advice = advise(s)
    head = [
        f"{found.model}, {s.token_bytes / 1e6:.0f} MB of weights read per token, cache {s.kv_type}",
        f"{found.cpu}, {s.threads} of {counted(s.cores, 'core')}, kernels {s.level}",
        f"memory      {found.bandwidth_gbs:.1f} GB/s, read over {found.bandwidth_megabytes} MB",
        f"arithmetic  {found.main_type} {found.rate_one / 1e9:.1f} (1 row) and {found.rate_many / 1e9:.1f}"
        f" ({counted(found.many, 'row')}), f32 {found.float_rate / 1e9:.1f} billion products/s, in the cache",
    ]
    lines = [part for line in head for part in _wrapped(line, width, "", " " * _NAME if line in head[2:] else "")]
    titled = [
        (f"prompt, {s.prompt.name}", s.prompt),
        (f"one answer, {s.one.name}", s.one),
        (f"{counted(s.several.n_tokens, 'answer')}, {s.several.name}", s.several),
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


def _block(titled: list[tuple[str, Run]]) -> list[str]:
    """Runs side by side."""
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


def _others(found: Examination, chosen: Advice) -> list[Advice]:
    from woolly.engine.diagnosis import candidates

    return [a for a in candidates(found.situation) if a.kind != chosen.kind and a.gain >= 1.03][:2]


def _row(name: str, cells: list[str]) -> str:
    return f"{name:<{_NAME}}" + "".join(f"{cell:<{_CELL}}" for cell in cells)


def _cell(run: Run, name: str) -> str:
    part = run.part(name)
    if part is None:
        return ""
    share = f"{part.seconds / run.seconds:4.0%}"
    # More than the limit: other programs disturbed its measurement, or the weights stayed in a cache.
    reached = f"{part.reached:.0%}" if part.reached <= 1 else ">100%"
    return f"{share}  {part.limits.bound:<10} {reached:>6}" if part.limits.bound else share


def _wrapped(text: str, width: int, first: str = "  ", rest: str = "  ") -> list[str]:
    return textwrap.wrap(text, width - 2, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _plot(found: Examination) -> str:
    from woolly.engine.diagnosis import advise
    from woolly.engine.plots import Mark, Roof, roofline_plot

    s = found.situation
    advice = advise(s)
    runs = (s.prompt, s.one, s.several)
    marks = [
        Mark(part.name, part.macs / part.n_bytes, part.macs / part.seconds / 1e9, i)
        for i, run in enumerate(runs)
        for part in run.parts
        if part.macs and part.n_bytes
    ]
    roofs = [
        Roof(f"{found.main_type}, {found.many} rows: {found.rate_many / 1e9:.0f}", found.rate_many / 1e9),
        Roof(f"{found.main_type}, 1 row: {found.rate_one / 1e9:.0f}", found.rate_one / 1e9),
        Roof(f"f32: {found.float_rate / 1e9:.0f}", found.float_rate / 1e9),
    ]
    notes = [
        f"{found.cpu}, {s.threads} of {counted(s.cores, 'core')}, kernels {s.level};"
        " roofs: kernels on weights in the cache",
        f"What would help most: {advice.do}" + (f" ({advice.gain:.2f}x)" if advice.gain > 1 else ""),
    ]
    series = [f"{run.name}: {run.rate:.1f} tokens/s" for run in runs]
    return roofline_plot(f"Why {found.model} runs as it does", notes, found.bandwidth_gbs, roofs, series, marks)


def _as_json(found: Examination) -> dict[str, Any]:
    from woolly.engine.diagnosis import advise

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
