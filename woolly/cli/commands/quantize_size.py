"""`woolly quantize --size`: measures and selects the types with the least loss at a given size."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.files import read_utf8
from woolly.cli.terminal.human_readable import format_size
from woolly.cli.terminal.progress import bytes_bar, print_status, steps_bar
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from woolly.gguf import GGUFFile
    from woolly.measure.bit_allocation.search import Allocation, Candidate
    from woolly.quantize import ImportanceMatrix, Recipe

_CTX, _WINDOWS = 256, 4  # tokens per window, and number of windows to measure
_BAR = 24  # length of the longest bar


def quantize_to_size(
    file: GGUFFile,
    target: Path,
    wanted: str,
    *,
    text: str | None,
    ctx: int | None,
    windows: int | None,
    imatrix: ImportanceMatrix | None,
    threads: int,
    dry_run: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Choose types by KL divergence, write the file, and compare it with known mixes."""
    from woolly.measure.bit_allocation.search import allocate_bits
    from woolly.quantize import quantize_file
    from woolly.runtime.options import parse_size
    from woolly.tokens import Tokenizer

    if text is None:
        raise UsageError("--size needs --text FILE, a text of the kind that the model will process")
    ctx, windows = _CTX if ctx is None else ctx, _WINDOWS if windows is None else windows
    for name, value, low in (("--ctx", ctx, 8), ("--windows", windows, 1)):
        if value < low:
            raise UsageError(f"{name} is {value}; expected at least {low}")
    limit = parse_size("size", wanted) or 0
    # Metadata, and padding after each tensor.
    overhead = file.n_bytes - sum(t.n_bytes for t in file.tensors.values()) + file.alignment * len(file.tensors)
    tokens = Tokenizer.from_metadata(file.metadata).encode(read_utf8(text), add_special=True, parse_special=False)
    parts = [tokens[at : at + ctx] for at in range(0, len(tokens) - ctx + 1, ctx)]
    if not parts:
        raise RequestError(f"{text} has {len(tokens)} tokens, but a window has {ctx}; use a longer text")
    chosen_by = parts[: windows if len(parts) > windows else max(1, len(parts) // 2)]
    left = parts[len(chosen_by) :][:windows]
    if not left:
        print_status(f"woolly: {text} has one window of {ctx} tokens: nothing is left to check the result on")
    records = _records(target, file, tokens, ctx, windows, imatrix)
    with steps_bar("measuring", "files") as report:
        allocation = allocate_bits(
            file,
            limit - overhead,
            records,
            _maker(file, chosen_by, threads, imatrix),
            _maker(file, left, threads, imatrix) if left else None,
            imatrix=imatrix,
            on_progress=lambda _, done, total: report(done, total) if report is not None else None,
        )
    recipe = _recipe(file, allocation.best)
    report_missing(imatrix, recipe)
    n_bytes = allocation.best.n_bytes + overhead
    if not dry_run:
        with bytes_bar(f"{file.path.name} to {format_size(n_bytes)}") as progress:
            summary = quantize_file(file, recipe, target, threads=threads, progress=progress, imatrix=imatrix)
        n_bytes = summary.n_bytes
    if plot is not None:
        from woolly.measure.bit_allocation.plot import plot_allocation

        plot.write_text(plot_allocation(allocation, file.path.name, overhead))
    if as_json:
        click.echo(json.dumps(_facts(allocation, recipe, target, n_bytes, overhead), indent=2))
    else:
        _print(allocation, target, n_bytes, overhead, dry_run)


def report_missing(imatrix: ImportanceMatrix | None, recipe: Recipe) -> None:
    """Print weights without an imatrix entry on standard error. Raise RequestError if one needs an entry."""
    missing = [] if imatrix is None else imatrix.missing(recipe)
    if imatrix is not None and missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        print_status(f"woolly: {imatrix.path} has no entry of {shown}: all columns count alike there")


def _maker(file: GGUFFile, windows: Sequence[Sequence[int]], threads: int, imatrix: ImportanceMatrix | None) -> Any:
    def make() -> Any:
        from woolly.measure.bit_allocation.kl_meter import KlMeter

        return KlMeter(file, windows, threads=threads, imatrix=imatrix)

    return make


def _records(
    target: Path, file: GGUFFile, tokens: Sequence[int], ctx: int, windows: int, imatrix: ImportanceMatrix | None
) -> Any:
    from woolly import __version__
    from woolly.measure.bit_allocation.measurement_cache import Records
    from woolly.runtime.arithmetic_version import ARITHMETIC_VERSION
    from woolly.store.file_digest import digest_of

    of = {
        "woolly": f"{__version__}, arithmetic {ARITHMETIC_VERSION}",
        "model": digest_of(file.paths),
        "text": hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest(),
        "imatrix": None if imatrix is None else hashlib.sha256(imatrix.path.read_bytes()).hexdigest(),
        "ctx": ctx,
        "windows": windows,
    }
    return Records(target.with_name(target.name + ".kl.json"), of)


def _recipe(file: GGUFFile, best: Candidate) -> Recipe:
    """Return the recipe of a choice, named after the mix whose type has the most bytes."""
    from collections import Counter

    from woolly.quantize import MIXES, Change
    from woolly.quantize import Recipe as Made

    changes = tuple(Change(tensor, best.types.get(name, tensor.type)) for name, tensor in file.tensors.items())
    sizes: Counter[Any] = Counter()
    for change in changes:
        sizes[change.type] += change.n_bytes
    named = [mix for type, _ in sizes.most_common() for mix in MIXES.values() if mix.type is type]
    return Made(MIXES.get(best.name, named[0]), changes)


def _facts(allocation: Allocation, recipe: Recipe, target: Path, n_bytes: int, overhead: int) -> dict[str, Any]:
    def of(candidate: Candidate) -> dict[str, Any]:
        validation = candidate.held_out
        return {
            "name": candidate.name,
            "bytes": candidate.n_bytes + overhead,
            "kl": candidate.loss.kl,
            "same_top": candidate.loss.same_top,
            "held_out": None if validation is None else asdict(validation),
        }

    return {
        "path": str(target),
        "file_bytes": n_bytes,
        "bits_per_weight": round(recipe.bits_per_weight, 3),
        "best": of(allocation.best),
        "known": [of(mix) for mix in allocation.known],
        "predicted_kl": allocation.predicted_kl,
        "exchanges": allocation.n_exchanges,
        "measurements": [asdict(one) for one in allocation.measured],
        "tensor_types": {change.tensor.name: change.type.name for change in recipe.changes if change.is_change},
    }


def _print(allocation: Allocation, target: Path, n_bytes: int, overhead: int, dry_run: bool) -> None:
    from rich.table import Table

    console = stdout_console()
    shown = Table("file", box=None, pad_edge=False)
    for title in ("size", "KL", "same top", "KL held out"):
        shown.add_column(title, justify="right")
    shown.add_column("")
    rows = [allocation.best, *(mix for mix in allocation.known if mix.name != allocation.best.name)]
    for candidate in sorted(rows, key=lambda one: -one.n_bytes):
        validation = candidate.held_out
        judged = validation or candidate.loss
        shown.add_row(
            ("> " if candidate is allocation.best else "  ") + candidate.name,
            format_size(candidate.n_bytes + overhead),
            f"{candidate.loss.kl:.5f}",
            f"{candidate.loss.same_top:.1%}",
            "" if validation is None else f"{validation.kl:.5f}",
            _bar(judged.kl, [(one.held_out or one.loss).kl for one in rows]),
        )
    print_table(console, shown)
    if allocation.best.name != "picked":
        print_status(f"woolly: no choice lost less than {allocation.best.name}, so that is what is written")
    verb = "would be" if dry_run else ""
    console.print(" ".join(f"{target} {verb} {format_size(n_bytes)}".split()), soft_wrap=True)


def _bar(kl: float, others: Sequence[float]) -> str:
    """Return a logarithmic bar: a character is the same factor everywhere."""
    low, high = (math.log(max(value, 1e-9)) for value in (min(others), max(others)))
    share = (math.log(max(kl, 1e-9)) - low) / (high - low) if high > low else 0
    return "█" * (1 + round(share * (_BAR - 1)))
