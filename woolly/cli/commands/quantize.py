"""`woolly quantize`: writes a model with fewer bits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.commands.quantize_size import quantize_to_size, report_missing
from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, THREADS
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_duration, plural
from woolly.cli.terminal.human_readable import format_size as sized
from woolly.cli.terminal.progress import bytes_bar, print_status
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import RequestError
from woolly.store import resolve

if TYPE_CHECKING:
    from woolly.quantize import Recipe, Summary

# Metadata that depends on the tensors of the file.
_OWN_KEYS = frozenset(
    {"general.alignment", "general.architecture", "general.file_type", "general.quantization_version"}
)


@command(
    Argument("source", "IN", "A GGUF file in F32, F16 or BF16.", required=True),
    Argument("target", "OUT", "The file to write.", Path, required=True),
    Argument(
        "type_name",
        "TYPE",
        "Q4_K_M is the usual choice. Also Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_S IQ4_NL IQ4_XS Q4_1 Q4_0 Q3_K_L"
        " Q3_K_M Q3_K_S IQ3_M IQ3_S IQ3_XS IQ3_XXS Q2_K IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S TQ2_0 TQ1_0 MXFP4_MOE"
        " NVFP4 BF16 F16 F32.",
        shown="with --size, chosen for each group of weights",
    ),
    Option(
        "--size",
        "Maximum file size, such as 5GB. Types are chosen by the KL divergence on --text. Measurements are cached in"
        " OUT.kl.json, so interrupted runs resume and other sizes are quick.",
        metavar="SIZE",
    ),
    Option("--text", "With --size: a text of the kind that the model will process.", metavar="FILE"),
    Option("--ctx -c", "With --size: tokens per window of the text.", int, shown="256"),
    Option("--windows", "With --size: windows to choose types with, and as many to verify.", int, shown="4"),
    Option("--plot", "With --size: write a plot of size and KL divergence (SVG).", Path, metavar="FILE"),
    THREADS,
    Option("--pure", "Use the same type for all weights.", bool, default=False),
    Option("--output-tensor-type", "Type of output.weight.", to="output_type"),
    Option("--leave-output-tensor", "Leave output.weight in its type.", bool, default=False),
    Option("--token-embedding-type", "Type of token_embd.weight.", to="embedding_type"),
    Option(
        "--tensor-type",
        "Type of weights whose names match a regular expression, such as attn_v=Q6_K; may be repeated, the last match"
        " wins.",
        list,
        metavar="REGEX=TYPE",
    ),
    Option(
        "--imatrix",
        "Importance matrix from woolly imatrix or llama.cpp, GGUF or .dat.",
        Path,
        to="imatrix_path",
        metavar="FILE",
    ),
    Option("--include-weights", "Use the importance matrix only for weights with this name; may be repeated.", list),
    Option("--exclude-weights", "Use no importance matrix for weights with this name; may be repeated.", list),
    Option(
        "--override-kv",
        "Metadata of OUT: KEY=TYPE:VALUE, separated by commas; may be repeated.",
        list,
        to="metadata",
        metavar="TEXT",
    ),
    Option("--keep-split", "Write one file per shard of IN, named OUT-00001-of-....", bool, default=False),
    Option("--allow-requantize", "Accept weights that are already quantized.", bool, default=False),
    Option("--dry-run", "Show what would be written, but write nothing.", bool, default=False),
    Option("--verbose -v", "List every tensor with its types.", bool, default=False),
    Option("--force -f", "Overwrite an existing file.", bool, default=False),
    AS_JSON,
)
def quantize(
    source: str,
    target: Path,
    type_name: str | None,
    size: str | None,
    text: str | None,
    ctx: int | None,
    windows: int | None,
    plot: Path | None,
    threads: int | None,
    pure: bool,
    output_type: str | None,
    leave_output_tensor: bool,
    embedding_type: str | None,
    tensor_type: tuple[str, ...],
    imatrix_path: Path | None,
    include_weights: tuple[str, ...],
    exclude_weights: tuple[str, ...],
    metadata: tuple[str, ...],
    keep_split: bool,
    allow_requantize: bool,
    dry_run: bool,
    verbose: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Quantize a model, for instance: woolly quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M."""
    from woolly.gguf import open_gguf
    from woolly.gguf.overlay import parse_overrides
    from woolly.machine.cores import default_threads
    from woolly.quantize import find_mix, find_tensor_type, find_type, make_recipe, quantize_file, read_imatrix
    from woolly.quantize.split import quantize_split, split_paths

    if (type_name is None) is (size is None):
        raise UsageError("missing type or --size: woolly quantize model-F16.gguf model-Q4_K_M.gguf Q4_K_M")
    of_size = {"--text": text, "--ctx": ctx, "--windows": windows, "--plot": plot}
    for option in [name for name, value in of_size.items() if value is not None and size is None]:
        raise UsageError(f"{option} needs --size; add --size or omit it")
    if leave_output_tensor and output_type is not None:
        raise UsageError("--leave-output-tensor and --output-tensor-type cannot be combined; omit one of them")
    if (include_weights or exclude_weights) and imatrix_path is None:
        raise UsageError("--include-weights and --exclude-weights need --imatrix; add it or omit them")
    if include_weights and exclude_weights:
        raise UsageError("--include-weights and --exclude-weights cannot be combined; omit one of them")
    given = {
        "--pure": pure,
        "--leave-output-tensor": leave_output_tensor,
        "--output-tensor-type": output_type,
        "--token-embedding-type": embedding_type,
    }
    for option in [name for name, value in given.items() if value and size is not None]:
        raise UsageError(f"{option} cannot be combined with --size, which chooses the types; omit one of them")
    if size is not None and (tensor_type or keep_split or metadata):
        what = "--tensor-type" if tensor_type else "--keep-split" if keep_split else "--override-kv"
        raise UsageError(f"{what} cannot be combined with --size yet; omit one of them")
    try:
        mix = find_mix(type_name or "F16")
        output = find_type(output_type, "--output-tensor-type") if output_type else None
        embedding = find_type(embedding_type, "--token-embedding-type") if embedding_type else None
        tensor_types = [find_tensor_type(text) for text in tensor_type]
    except RequestError as error:
        raise error.with_message(str(error), UsageError) from None
    if threads is not None and not 1 <= threads <= 1024:
        raise UsageError(f"--threads is {threads}; expected 1 to 1024")
    if target.is_dir():
        raise RequestError(f"{target} is a folder; expected the name of a file")
    imatrix = None if imatrix_path is None else read_imatrix(imatrix_path)
    if imatrix is not None:
        imatrix = imatrix.only(include_weights, exclude_weights)
    overrides = parse_overrides(metadata)
    for key in sorted(_OWN_KEYS & overrides.keys()):
        raise UsageError(f"--override-kv gives {key!r}, which quantization writes; omit it")
    with open_gguf(resolve(source)) as file:
        file.overlay(overrides)
        if leave_output_tensor and "output.weight" in file.tensors:
            output = file.tensors["output.weight"].type
        paths = split_paths(target, len(file.paths)) if keep_split and len(file.paths) > 1 else [target]
        for path in paths:
            if path.exists() and not force and not dry_run:
                raise RequestError(f"{path} already exists; choose another name, or add --force to overwrite it")
        if size is not None:
            make_recipe(file, find_mix("Q4_0"), allow_requantize=allow_requantize)  # rejects quantized files
            quantize_to_size(
                file,
                target,
                size,
                text=text,
                ctx=ctx,
                windows=windows,
                imatrix=imatrix,
                threads=threads or default_threads(),
                dry_run=dry_run,
                as_json=as_json,
                plot=plot,
            )
            return
        recipe = make_recipe(
            file,
            mix,
            pure=pure,
            output_type=output,
            embedding_type=embedding,
            tensor_types=tensor_types,
            allow_requantize=allow_requantize,
            has_imatrix=imatrix is not None,
        )
        report_missing(imatrix, recipe)
        summary = None
        if not dry_run:
            with bytes_bar(f"{file.path.name} to {mix.name}") as report:
                write = quantize_file if len(paths) == 1 else quantize_split
                summary = write(
                    file, recipe, target, threads=threads or default_threads(), progress=report, imatrix=imatrix
                )
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
        "path": str(summary.path if summary is not None else target),
        "type": recipe.mix.name,
        "bytes_before": recipe.n_bytes_before,
        "bytes": recipe.n_bytes,
        "bits_per_weight": round(recipe.bits_per_weight, 3),
        "tensors": _types(recipe),
        "loss_free": recipe.is_loss_free,
    }
    if summary is not None:
        facts |= {"file_bytes": summary.n_bytes, "seconds": round(summary.seconds, 6)}
    if dry_run:
        facts["tensor_list"] = {
            change.tensor.name: {
                "from": change.tensor.type.name,
                "to": change.type.name,
                "bytes": change.n_bytes,
                "loss_free": change.is_loss_free,
            }
            for change in recipe.changes
        }
    return facts


def _print(recipe: Recipe, target: Path, summary: Summary | None, verbose: bool) -> None:
    from rich.table import Table

    console = stdout_console()
    if verbose:
        listed = Table("tensor", "from", "to", box=None, pad_edge=False)
        listed.add_column("size", justify="right")
        for change in recipe.changes:
            listed.add_row(change.tensor.name, change.tensor.type.name, change.type.name, sized(change.n_bytes))
        print_table(console, listed)
        console.print()
    parts = ", ".join(f"{e['count']} {name} ({sized(e['bytes'])})" for name, e in _types(recipe).items())
    console.print(f"tensors  {parts}", soft_wrap=True)
    console.print(
        f"weights  {sized(recipe.n_bytes_before)} -> {sized(recipe.n_bytes)}, {recipe.bits_per_weight:.2f} bits each"
        + (", nothing is lost" if recipe.is_loss_free else "")
    )
    if summary is not None:
        rate = recipe.n_bytes_before / max(summary.seconds, 1e-9) / 1e6
        console.print(
            f"{summary.path}  {sized(summary.n_bytes)} in {format_duration(summary.seconds)} ({rate:.0f} MB/s)",
            soft_wrap=True,
        )
    if recipe.n_misfits:
        print_status(
            f"woolly: larger types stand in for {recipe.mix.type.name} in {plural(recipe.n_misfits, 'tensor')}, whose"
            f" rows are no multiple of {recipe.mix.type.block_size}"
        )
