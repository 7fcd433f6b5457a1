"""Output formats of `woolly bench`. Fields have llama-bench's names if llama-bench has them."""

from __future__ import annotations

import csv
import functools
import io
import json
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.screen import print_table
from woolly.machine.background_load import NOTABLE
from woolly.machine.cpu import cpu_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from woolly.measure.bench import Measured, StepKind

# Width of the complete table in columns.
_WIDE = 80

_MAX_SHARE = 1.05  # of the read bandwidth; both are measured, and vary by a few percent

# Fields of llama-bench for choices that Woolly does not have.
_ALWAYS = {
    "no_kv_offload": False,
    "no_op_offload": 0,
    "no_host": False,
    "load_mode": "mmap",
    "embeddings": False,
}

FORMATS = ("md", "table", "json", "jsonl", "csv")


@dataclass(frozen=True)
class Record:
    """One test: a workload with one setting."""

    model_filename: str
    model_type: str
    model_size: int  # size of all tensors
    model_n_params: int
    backend: str
    device: str  # name of the GPU; empty: the CPU
    level: str
    threads: int
    n_gpu_layers: int  # -1: as many as fit, or all
    n_ubatch: int
    kv_type: str
    test_time: str
    load_s: float  # to the first token; the file may have been in the page cache
    peak_mib: float | None  # None if it may be the peak of an earlier setting
    bandwidth_gbs: float
    measured: Measured
    profile: tuple[StepKind, ...] | None
    others_share: float | None = None  # share of CPU time used by other programs

    @property
    def kind(self) -> str:
        """Device in capitals: CPU, or the kind of GPU."""
        return self.backend.upper() if self.device else "CPU"

    @property
    def share(self) -> float | None:
        """Share of the read bandwidth; None for a prompt, which is not bound by it.

        None also for more than all of it: the machine was busy while the bandwidth was measured.
        """
        if self.measured.work.kind == "prompt" or not self.bandwidth_gbs:
            return None
        share = self.measured.gb_per_second / self.bandwidth_gbs
        return share if share <= _MAX_SHARE else None

    @property
    def first_token_s(self) -> float | None:
        """Seconds until the logits after a prompt are computed."""
        return statistics.median(self.measured.seconds) if self.measured.work.kind == "prompt" else None

    def as_dict(self) -> dict[str, Any]:
        """Return a flat dict, except for samples and profile."""
        from woolly import __version__

        m, work = self.measured, self.measured.work
        samples = [round(s * 1e9) for s in m.seconds]
        share, first = self.share, self.first_token_s
        out: dict[str, Any] = {
            "engine": f"woolly {__version__}",
            "build_commit": "unknown",  # llama-bench's values for a build without a repository
            "build_number": 0,
            "cpu_info": _cpu_name(),
            "backends": self.kind,
            "gpu_info": self.device,
            "level": self.level,
            "model_filename": self.model_filename,
            "model_type": self.model_type,
            "model_size": self.model_size,
            "model_n_params": self.model_n_params,
            "n_batch": self.n_ubatch,  # a prompt runs in steps of this size; there is no larger logical batch
            "n_ubatch": self.n_ubatch,
            "n_threads": self.threads,
            "type_k": self.kv_type,
            "type_v": self.kv_type,
            "n_gpu_layers": self.n_gpu_layers,
            **_ALWAYS,
            "test": work.name,
            "n_prompt": work.n_tokens if work.kind == "prompt" else 0,
            "n_gen": work.n_tokens if work.kind == "generation" else 0,
            "n_depth": work.depth,
            "n_sequences": work.n_sequences,
            "test_time": self.test_time,
            "avg_ns": round(statistics.mean(samples)),
            "stddev_ns": round(statistics.stdev(samples)) if len(samples) > 1 else 0,
            "avg_ts": round(statistics.mean(m.rates), 3),
            "stddev_ts": round(m.deviation, 3),
            "median_ts": round(m.rate, 3),
            "samples_ns": samples,
            "samples_ts": [round(rate, 3) for rate in m.rates],
            "bandwidth_gbs": round(self.bandwidth_gbs, 2) if self.bandwidth_gbs else None,
            "bandwidth_share": None if share is None else round(share, 3),
            "first_token_s": None if first is None else round(first, 4),
            "load_s": round(self.load_s, 3),
            "peak_mib": None if self.peak_mib is None else round(self.peak_mib),
            "others_share": self.others_share,
        }
        if self.profile is not None:
            out["profile"] = [
                {
                    "step": kind.name,
                    "count": kind.n_steps,
                    "microseconds": round(kind.seconds * 1e6, 1),
                    "bytes": kind.n_bytes,
                    "gbs": round(kind.gb_per_second, 2),
                }
                for kind in self.profile
            ]
        return out


@functools.cache
def _cpu_name() -> str:
    return cpu_name()


def write(records: Sequence[Record], form: str, console: Console) -> None:
    """Write the results of all tests in a format: by default md, or a table if md is too wide for the terminal."""
    if not form:
        wide = console.is_terminal and len(_markdown(records).partition("\n")[0]) > console.width
        form = "table" if wide else "md"
    if form == "json":
        click.echo(json.dumps([record.as_dict() for record in records], indent=2))
    elif form == "jsonl":
        for record in records:
            click.echo(json.dumps(record.as_dict()))
    elif form == "csv":
        click.echo(_csv(records), nl=False)
    elif form == "md":
        width = console.width if console.is_terminal else 0
        lines = _markdown(records).split("\n")
        click.echo("\n".join(textwrap.fill(line, width) if width and line[:1] not in "|" else line for line in lines))
    else:
        _print(records, console)


def _csv(records: Sequence[Record]) -> str:
    """Return CSV without samples, as llama-bench does."""
    rows = [{k: v for k, v in record.as_dict().items() if not k.startswith("samples")} for record in records]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _cells(record: Record) -> dict[str, str]:
    m = record.measured
    return {
        "model": record.model_type.replace("|", "/"),
        "size": _size(record.model_size),
        "params": _count(record.model_n_params),
        "backend": record.kind if record.level == record.kind.lower() else f"{record.kind} {record.level}",
        "threads": str(record.threads),
        "type_k": record.kv_type,
        "n_ubatch": str(record.n_ubatch),
        "test": m.work.name,
        "t/s": f"{m.rate:.2f} ± {m.deviation:.2f}",
        "of bandwidth": "" if record.share is None else f"{record.share:.0%}",
    }


def _columns(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return the cells of each record, without columns that have the default in all records."""
    rows = [_cells(record) for record in records]
    for name, default in (("type_k", "f16"), ("n_ubatch", "512"), ("of bandwidth", "")):
        if all(row[name] == default for row in rows):
            for row in rows:
                del row[name]
    return rows


def _markdown(records: Sequence[Record]) -> str:
    rows = _columns(records)
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    left = {"model", "backend"}

    def line(row: dict[str, str]) -> str:
        cells = (row[n].ljust(widths[n]) if n in left else row[n].rjust(widths[n]) for n in names)
        return "| " + " | ".join(cells) + " |"

    rule = "| " + " | ".join("-" * widths[n] if n in left else "-" * (widths[n] - 1) + ":" for n in names) + " |"
    out = [line(dict(zip(names, names, strict=True))), rule, *map(line, rows), ""]
    out += _facts(records)
    for record in records:
        for kinds in [record.profile] if record.profile else []:
            out += ["", f"{record.measured.work.name}, {plural(record.threads, 'thread')}, per run:", ""]
            out += ["| step | count | us | share | MB | GB/s |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
            out += ["| " + " | ".join(row) + " |" for row in _profile_rows(kinds)]
    return "\n".join(out)


def _facts(records: Sequence[Record]) -> list[str]:
    """Return the lines that apply to a complete setting."""
    devices = dict.fromkeys(record.device for record in records if record.device)
    out = [f"on {' and '.join(devices)}"] if devices else []
    out += [f"t/s: median ± standard deviation of {plural(len(records[0].measured.seconds), 'repetition')}"]
    settings: dict[tuple[str, int, int, str], list[Record]] = {}
    for record in records:
        key = (record.model_filename, record.threads, record.n_ubatch, record.kv_type)
        settings.setdefault(key, []).append(record)
    several = len({record.model_filename for record in records}) > 1
    for same in settings.values():
        one = same[0]
        parts = [Path(one.model_filename).name] if several else []
        parts += [plural(one.threads, "thread")] if len(settings) > 1 else []
        name = f"{', '.join(parts)}: " if parts else ""
        peak = "" if one.peak_mib is None else f", peak memory {one.peak_mib:.0f} MiB"
        whose = "the GPU's bandwidth" if one.device else "read bandwidth"
        rate = f", {whose} {one.bandwidth_gbs:,.1f} GB/s" if one.bandwidth_gbs else ""  # 0: unknown GPU bandwidth
        out.append(f"{name}load to first token {one.load_s:.2f} s{peak}{rate}")
        first = [f"{r.first_token_s:.2f} s after {r.measured.work.name}" for r in same if r.first_token_s is not None]
        if first:
            out.append(f"{name}time to first token " + ", ".join(first))
    others = records[0].others_share
    if others is not None and others >= NOTABLE:
        out.append(f"other programs took {others:.0%} of the processor meanwhile: these figures are too low")
    return out


def _profile_rows(kinds: Sequence[StepKind]) -> list[list[str]]:
    whole = sum(kind.seconds for kind in kinds)
    rows = []
    for kind in kinds:
        row = [kind.name, str(kind.n_steps or ""), f"{kind.seconds * 1e6:.1f}", f"{kind.seconds / whole:.1%}"]
        read = [f"{kind.n_bytes / 1e6:.2f}", f"{kind.gb_per_second:.2f}"] if kind.n_bytes else ["", ""]
        rows.append(row + read)
    return rows


def _print(records: Sequence[Record], console: Console) -> None:
    say = _printer(console)
    files = list(dict.fromkeys(record.model_filename for record in records))
    for file in files:
        say(file)
    for fact in _facts(records):
        console.print(fact, highlight=False, markup=False)
    say("")
    figures = [_figures(record) for record in records]
    if len(files) > 1:
        names = [{"model": Path(record.model_filename).name} for record in records]
        figures = [name | row for name, row in zip(names, figures, strict=True)]
    if console.width < _WIDE:  # the other formats have them
        figures = [{name: row[name] for name in row if name not in ("least", "most", "GB/s")} for row in figures]
    table = _table(*figures[0])
    for each in figures:
        table.add_row(*each.values())
    print_table(console, table)
    for record in records:
        if record.profile:
            table = _table(f"{record.measured.work.name}, per run", "steps", "us", "share", "MB", "GB/s")
            for row in _profile_rows(record.profile):
                table.add_row(*row)
            say("")
            print_table(console, table)


def _figures(record: Record) -> dict[str, str]:
    m, share = record.measured, record.share
    return {
        "test": m.work.name,
        "threads": str(record.threads),
        "tokens/s": f"{m.rate:.1f}",
        "least": f"{min(m.rates):.1f}",
        "most": f"{max(m.rates):.1f}",
        "GB/s": "" if share is None else f"{m.gb_per_second:.1f}",
        "memory's limit": "" if share is None else f"{m.rate / share:.1f}",
        "reached": "" if share is None else f"{share:.0%}",
    }


def _printer(console: Console) -> Callable[[str], None]:
    """Return a function that prints plain text: no markup, no colors, no wrapping of long paths."""
    return lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)


def _table(first: str, *others: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=4)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _size(n: int) -> str:
    return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.2f} MiB"


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.2f} M"
