"""`woolly convert`: converts a checkpoint to a GGUF file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.commands.quantize_size import report_missing
from woolly.cli.first_run.checkpoint import check_archive, write_converted
from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, THREADS
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_duration, format_size, plural
from woolly.cli.terminal.progress import bytes_bar, print_status
from woolly.cli.terminal.screen import stdout_console
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.convert import ConversionPlan, Written
    from woolly.quantize import Recipe

_LIMIT = 1024  # threads


@command(
    Argument(
        "source",
        "FOLDER|ORG/REPO",
        "A folder with config.json and safetensors files, or its name on the hub.",
        required=True,
    ),
    Argument("target", "OUT", "The GGUF file to write.", Path, required=True),
    Argument(
        "type_name", "TYPE", "Any type of `woolly quantize`, such as Q8_0 or Q4_K_M; by default, the checkpoint's type."
    ),
    THREADS,
    Option(
        "--imatrix",
        "With TYPE: importance matrix from woolly imatrix or llama.cpp.",
        Path,
        to="imatrix_path",
        metavar="FILE",
    ),
    Option("--lora", "FOLDER is a LoRA adapter saved by PEFT: write a GGUF adapter.", bool, default=False),
    Option("--base", "With --lora: folder of the checkpoint that it was trained on.", Path, metavar="FOLDER"),
    Option(
        "--ignore-setting",
        "Setting of config.json to drop, because it does not affect the logits; may be repeated.",
        list,
        to="ignored",
        metavar="NAME",
    ),
    Option("--dry-run", "Show what would be written, but write nothing.", bool, default=False),
    Option("--force -f", "Overwrite an existing file.", bool, default=False),
    AS_JSON,
)
def convert(
    source: str,
    target: Path,
    type_name: str | None,
    threads: int | None,
    imatrix_path: Path | None,
    lora: bool,
    base: Path | None,
    ignored: list[str] | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Convert a checkpoint to a GGUF file, for instance: woolly convert ./Qwen3-0.6B qwen3-0.6b.gguf Q8_0.

    Before writing, the converted tokenizer is compared with the original on many lines of text, and the model is
    checked to be supported.
    """
    from woolly.convert import choose_types, open_checkpoint, plan_conversion
    from woolly.quantize import find_mix, read_imatrix

    if threads is not None and not 1 <= threads <= _LIMIT:
        raise UsageError(f"--threads is {threads}; expected 1 to {_LIMIT}")
    if type_name is not None:
        try:
            find_mix(type_name)
        except RequestError as error:
            raise error.with_message(str(error), UsageError) from None
    if imatrix_path is not None and (type_name is None or lora):
        raise UsageError("--imatrix needs a type such as Q4_K_M; add a type or omit --imatrix")
    if target.is_dir():
        raise RequestError(f"{target} is a folder; expected the name of a file")
    if target.exists() and not force and not dry_run:
        raise RequestError(f"{target} already exists; choose another name, or add --force to overwrite it")
    if lora:
        facts = _convert_lora(Path(source), base, target, type_name, dry_run=dry_run)
        if as_json:
            click.echo(json.dumps(facts, indent=2))
        else:
            what = f"{'would be an' if dry_run else 'an'} adapter that changes {plural(facts['tensors'], 'tensor')}"
            stdout_console().print(f"{target}  {what}", soft_wrap=True)
        return
    if base is not None:
        raise UsageError("--base needs --lora")
    imatrix = None if imatrix_path is None else read_imatrix(imatrix_path)
    folder, about = _folder(source)
    plan = plan_conversion(open_checkpoint(folder), about, ignored=ignored or ())
    recipe = choose_types(plan, type_name, has_imatrix=imatrix is not None)
    report_missing(imatrix, recipe)
    written = None if dry_run else write_converted(plan, recipe, target, threads, imatrix)
    if as_json:
        click.echo(json.dumps(_facts(plan, recipe, target, written), indent=2))
    else:
        _print(plan, recipe, target, written)


def _convert_lora(
    folder: Path, base: Path | None, target: Path, type_name: str | None, *, dry_run: bool
) -> dict[str, Any]:
    """Convert an adapter and return a summary. With `dry_run`, only check it."""
    from woolly.convert.lora import convert_lora

    if base is None:
        raise UsageError("--lora needs --base, the folder of the checkpoint that the adapter was trained on")
    if type_name is not None:
        raise UsageError(f"adapters are written in F32, so {type_name} cannot be used with --lora")
    n = convert_lora(folder, base, target, dry_run=dry_run)
    return {"path": str(target), "type": "F32", "tensors": n}


def _folder(source: str) -> tuple[Path, dict[str, Any]]:
    """Return the checkpoint folder and facts about it. A repository of the hub is downloaded first."""
    check_archive(source)
    path = Path(source)
    if path.exists():
        return path, {}
    # Unlike a path such as ./model, a repository's name does not begin with a dot.
    if not re.fullmatch(r"(hf:)?\w[\w.-]*/\w[\w.-]*", source, re.IGNORECASE):
        raise RequestError(
            f"no folder {source}; expected a folder with config.json and safetensors files, or the name of a"
            " repository, org/repo"
        )
    from woolly.store.hub_download import pull_checkpoint

    repo = re.sub("^hf:", "", source, flags=re.IGNORECASE)
    with bytes_bar(f"fetching {repo}") as report:
        folder = pull_checkpoint(repo, report)
    return folder, {"general.source.huggingface.repository": repo}


def _facts(plan: ConversionPlan, recipe: Recipe, target: Path, written: Written | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "path": str(target),
        "architecture": plan.metadata["general.architecture"],
        "type": recipe.mix.name,
        "bytes": recipe.n_bytes,
        "bits_per_weight": round(recipe.bits_per_weight, 3),
        "tensors": len(recipe.changes),
        "left_out": list(plan.left_out),
        "lines_compared": plan.n_lines,
    }
    if written is not None:
        facts |= {"file_bytes": written.n_bytes, "seconds": round(written.seconds, 6)}
    return facts


def _print(plan: ConversionPlan, recipe: Recipe, target: Path, written: Written | None) -> None:
    console = stdout_console()
    architecture = plan.metadata["general.architecture"]
    console.print(f"model    {architecture}, {plural(len(recipe.changes), 'tensor')}, {recipe.mix.name}")
    same = f"the same tokens on {plan.n_lines} lines" if plan.n_lines else "without tokenizer.json to compare with"
    console.print(f"tokens   {len(plan.metadata['tokenizer.ggml.tokens'])}, {same}")
    console.print(f"weights  {format_size(recipe.n_bytes)}, {recipe.bits_per_weight:.2f} bits each")
    if written is not None:
        console.print(f"{target}  {format_size(written.n_bytes)} in {format_duration(written.seconds)}", soft_wrap=True)
    if plan.left_out:
        print_status(f"woolly: {plural(len(plan.left_out), 'tensor')} that a model of text does not need left out")
