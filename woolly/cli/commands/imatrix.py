"""`woolly imatrix`: importance of the columns of a model's weights for a text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, METADATA, MODEL, NAMED, TEXT_FILE, THREADS, model_and_file
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.terminal.files import read_utf8
from woolly.cli.terminal.human_readable import format_duration, format_size, plural
from woolly.cli.terminal.progress import steps_bar
from woolly.errors import RequestError


@command(
    MODEL,
    Argument("text", "FILE", "A text file in UTF-8.", shown="standard input, as with -"),
    NAMED,
    TEXT_FILE,
    Option("--output -o", "The file to write.", Path, shown="imatrix.gguf", to="target", metavar="OUT"),
    Option("--ctx -c", "Tokens per window.", int, default=512),
    Option("--chunks -n", "Maximum windows of the text.", int, shown="all"),
    Option("--process-output", "Include output.weight.", bool, default=False),
    THREADS,
    METADATA,
    Option("--force", "Overwrite an existing file.", bool, default=False),
    AS_JSON,
)
def imatrix(
    model: str | None,
    text: str | None,
    named: str | None,
    file: str | None,
    target: Path | None,
    ctx: int,
    chunks: int | None,
    process_output: bool,
    threads: int | None,
    changes: dict[str, Any],
    force: bool,
    as_json: bool,
) -> None:
    """Write the importance of each weight's columns for a text, for woolly quantize --imatrix and llama.cpp."""
    from woolly.llm.load_checks import overrides_of
    from woolly.llm.model_options import ModelOptions
    from woolly.measure.collect_imatrix import collect_importance
    from woolly.quantize import write_imatrix

    model, text = model_and_file("imatrix", model, text, named, file, "missing text: woolly imatrix smollm2 text.txt")
    target = target or Path("imatrix.gguf")
    if target.is_dir():
        raise RequestError(f"{target} is a folder; expected the name of a file")
    if target.exists() and not force:
        raise RequestError(f"{target} already exists; choose another name, or add --force to overwrite it")
    if chunks is not None and chunks < 1:
        raise RequestError(f"chunks is {chunks}; expected at least 1", field="chunks")
    content = read_utf8(text)
    start = time.perf_counter()
    with steps_bar("observing", "windows") as report:
        matrix = collect_importance(
            model,
            content,
            target,
            dataset=Path(text).name if text != "-" else "",
            ctx=ctx,
            chunks=chunks,
            output=process_output,
            threads=threads,
            progress=report,
            metadata=overrides_of(ModelOptions(**changes)),
        )
    write_imatrix(matrix)
    seconds = time.perf_counter() - start
    facts = {
        "path": str(target),
        "entries": len(matrix.entries),
        "chunks": matrix.n_chunks,
        "ctx": ctx,
        "file_bytes": target.stat().st_size,
        "seconds": round(seconds, 2),
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(
        f"{target}  {plural(len(matrix.entries), 'weight')}, {plural(matrix.n_chunks, 'window')} of {ctx} tokens,"
        f" {format_size(target.stat().st_size)} in {format_duration(seconds)}"
    )
