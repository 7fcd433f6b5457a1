"""`woolly quantize`: a model with fewer bits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, THREADS
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage import UsageError
from woolly.cli.terminal.progress import bytes_bar, tell
from woolly.cli.terminal.screen import print_table, results
from woolly.cli.terminal.sizes import counted, duration, size
from woolly.errors import RequestError
from woolly.store import resolve

if TYPE_CHECKING:
    from woolly.quantize import Recipe, Summary

__all__ = ["quantize"]


@command(
    Argument("source", "IN", "A GGUF file in F32, F16 or BF16.", required=True),
    Argument("target", "OUT", "The file to write.", Path, required=True),
    Argument(
        "type_name",
        "TYPE",
        "Q4_K_M is the usual choice. Also Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_S IQ4_NL IQ4_XS Q4_1 Q4_0 Q3_K_L"
        " Q3_K_M Q3_K_S Q2_K BF16 F16 F32.",
        required=True,
    ),
    THREADS,
    Option("--pure", "The same type for all weights, without a mix.", bool, default=False),
    Option("--output-tensor-type", "Type of output.weight.", to="output_type"),
    Option("--token-embedding-type", "Type of token_embd.weight.", to="embedding_type"),
    Option("--allow-requantize", "Also take weights that are quantized already.", bool, default=False),
    Option("--dry-run", "Only say what would be written.", bool, default=False),
    Option("--verbose -v", "List every tensor with its types.", bool, default=False),
    Option("--force -f", "Write over a file that exists.", bool, default=False),
    AS_JSON,
)
def quantize(
    source: str,
    target: Path,
    type_name: str,
    threads: int | None,
    pure: bool,
    output_type: str | None,
    embedding_type: str | None,
    allow_requantize: bool,
    dry_run: bool,
    verbose: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a model again with fewer bits, for instance: woolly quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M."""
    from woolly.gguf import open_gguf
    from woolly.machine.cores import default_threads
    from woolly.quantize import find_mix, find_type, make_recipe, quantize_file

    try:
        mix = find_mix(type_name)
        output = find_type(output_type, "--output-tensor-type") if output_type else None
        embedding = find_type(embedding_type, "--token-embedding-type") if embedding_type else None
    except RequestError as error:
        raise error.retold(str(error), UsageError) from None
    if threads is not None and not 1 <= threads <= 1024:
        raise UsageError(f"--threads is {threads}; from 1 to 1024 were expected")
    if target.is_dir():
        raise RequestError(f"{target} is a folder: give the name of the file to write in it")
    if target.exists() and not force and not dry_run:
        raise RequestError(f"{target} exists already: give another name, or --force to write over it")
    with open_gguf(resolve(source)) as file:
        recipe = make_recipe(
            file,
            mix,
            pure=pure,
            output_type=output,
            embedding_type=embedding,
            allow_requantize=allow_requantize,
        )
        summary = None
        if not dry_run:
            with bytes_bar(f"{file.path.name} to {mix.name}") as report:
                summary = quantize_file(file, recipe, target, threads=threads or default_threads(), progress=report)
    if as_json:
        click.echo(json.dumps(_facts(recipe, target, summary, dry_run), indent=2))
    else:
        _print(recipe, target, summary, verbose)


def _types(recipe: Recipe) -> dict[str, dict[str, int]]:
    count: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for change in recipe.changes:
        count[change.type.name] += 1
        n_bytes[change.type.name] += change.n_bytes
    return {name: {"count": count[name], "bytes": n_bytes[name]} for name, _ in n_bytes.most_common()}


def _facts(recipe: Recipe, target: Path, summary: Summary | None, dry_run: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "path": str(target),
        "type": recipe.mix.name,
        "bytes_before": recipe.n_bytes_before,
        "bytes": recipe.n_bytes,
        "bits_per_weight": round(recipe.bits_per_weight, 3),
        "tensors": _types(recipe),
    }
    if summary is not None:
        facts |= {"file_bytes": summary.n_bytes, "seconds": round(summary.seconds, 6)}
    if dry_run:
        facts["tensor_list"] = {
            change.tensor.name: {"from": change.tensor.type.name, "to": change.type.name, "bytes": change.n_bytes}
            for change in recipe.changes
        }
    return facts


def _print(recipe: Recipe, target: Path, summary: Summary | None, verbose: bool) -> None:
    from rich.table import Table

    console = results()
    if verbose:
        listed = Table("tensor", "from", "to", box=None, pad_edge=False)
        listed.add_column("size", justify="right")
        for change in recipe.changes:
            listed.add_row(change.tensor.name, change.tensor.type.name, change.type.name, size(change.n_bytes))
        print_table(console, listed)
        console.print()
    parts = ", ".join(f"{entry['count']} {name}" for name, entry in _types(recipe).items())
    console.print(f"tensors  {parts}")
    console.print(
        f"weights  {size(recipe.n_bytes_before)} -> {size(recipe.n_bytes)}, {recipe.bits_per_weight:.2f} bits each"
    )
    if summary is not None:
        rate = recipe.n_bytes_before / max(summary.seconds, 1e-9) / 1e6
        console.print(
            f"{target}  {size(summary.n_bytes)} in {duration(summary.seconds)} ({rate:.0f} MB/s)", soft_wrap=True
        )
    if recipe.n_misfits:
        tell(
            f"woolly: larger types stand in for {recipe.mix.type.name} in {counted(recipe.n_misfits, 'tensor')}, whose"
            f" rows are no multiple of {recipe.mix.type.block_size}"
        )
