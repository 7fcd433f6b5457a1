"""`woolly embed`: computes embeddings of texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import (
    BACKEND,
    CHANGES,
    DEVICE,
    GPU_LAYERS,
    MODEL,
    NAMED,
    THREADS,
    model_and_text,
    one_model,
)
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import print_status, steps_bar
from woolly.cli.text_io.embeddings_file import EmbeddingsFile, check_format, identity, json_line
from woolly.cli.text_io.sources import read_texts

_BLOCK = 256  # texts per block: an interrupted run loses at most one; large enough to sort by length


@command(
    MODEL,
    Argument("text", "TEXT", "The text.", shown="one per line of standard input, as with -"),
    NAMED,
    Option("--prompt -p", "The text, in place of the argument TEXT."),
    Option("--file -f", "File with a text per line, or .jsonl with an object per line.", Path),
    Option("--key", "Key of the text in the objects of a .jsonl file.", default="text"),
    Option(
        "--output -o",
        "File with suffix .npy, .jsonl or .parquet. An interrupted run resumes with the same command.",
        Path,
        shown="lines of JSON on standard output",
    ),
    Option("--dimensions", "Keep the first N numbers of each embedding.", int, shown="all"),
    Option("--pooling", "Pooling of token rows: mean, cls or last.", shown="set by the file"),
    Option("--normalize/--no-normalize", "Normalize embeddings.", bool, default=True),
    Option("--truncate", "Truncate texts that are too long; by default they are an error.", bool, default=False),
    Option("--ctx -c", "Maximum tokens of a text.", int, shown="the model's, at most 8192"),
    THREADS,
    BACKEND,
    DEVICE,
    GPU_LAYERS,
    CHANGES,
)
def embed(
    model: str | None,
    text: str | None,
    named: str | None,
    prompt: str | None,
    file: Path | None,
    key: str,
    output: Path | None,
    dimensions: int | None,
    pooling: Any,
    normalize: bool,
    truncate: bool,
    ctx: int | None,
    threads: int | None,
    backend: str | None,
    device: str | None,
    gpu_layers: str | None,
    changes: dict[str, Any],
) -> None:
    """Compute embeddings of texts, for search, clustering and RAG."""
    if output is not None:
        check_format(output)
    if prompt is not None:
        if text is not None or file is not None:
            raise UsageError(f"-p {prompt[:40]!r} and another text are given; omit one of them")
        name, texts = one_model("embed", model, named), [prompt]
    elif file is not None:
        if text is not None:
            raise UsageError(f"{text[:40]!r} and --file {file} are both given; omit one of them")
        name, texts = one_model("embed", model, named), read_texts("--file", file, key)
    else:
        name, given = model_and_text("embed", model, text, named, 'missing text: woolly embed MODEL "wool"')
        texts = read_texts("-", None, key) if given == "-" else [given]
    if not texts:
        raise UsageError("there are no texts; expected one per line")
    from woolly.llm import LLM

    options = {"dimensions": dimensions, "pooling": pooling, "normalize": normalize, "truncate": truncate}
    placed: dict[str, Any] = {
        "threads": threads,
        "backend": backend or "auto",
        "device": device,
        "gpu_layers": gpu_layers,
    }
    with LLM(name, ctx=ctx, **placed, **changes) as llm:
        # Report errors before any work is done.
        n_cut = sum(map(bool, llm.prepare_embedding(texts, **_preparing(options)).n_cut))
        if n_cut:
            print_status(f"{plural(n_cut, 'text')} of {len(texts)} cut to what the model takes")
        if output is None:
            _print(llm, texts, options)
        else:
            _write(llm, texts, options, output, changes)


def _preparing(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "normalize"}


def _print(llm: Any, texts: list[str], options: dict[str, Any]) -> None:
    with steps_bar("embedding", "texts") as report:
        for first in range(0, len(texts), _BLOCK):
            block = texts[first : first + _BLOCK]
            for index, (text, row) in enumerate(zip(block, llm.embed(block, **options), strict=True), first):
                click.echo(json_line(index, text, row))
            if report is not None:
                report(first + len(block), len(texts))
    sys.stdout.flush()


def _write(llm: Any, texts: list[str], options: dict[str, Any], output: Path, changes: dict[str, Any]) -> None:
    width = options["dimensions"] or llm.embed(texts[:1], **{**options, "truncate": True}).shape[1]
    what = identity(texts, model=llm.path.name, model_bytes=llm.path.stat().st_size, ctx=llm.ctx, **options, **changes)
    embeddings = EmbeddingsFile(output, what, width)
    try:
        if embeddings.n_done:
            print_status(f"resuming after {plural(embeddings.n_done, 'text')}")
        with steps_bar("embedding", "texts") as report:
            while embeddings.n_done < len(texts):
                embeddings.append(llm.embed(texts[embeddings.n_done : embeddings.n_done + _BLOCK], **options))
                if report is not None:
                    report(embeddings.n_done, len(texts))
        embeddings.finish(texts)
    finally:
        embeddings.close()
    print_status(f"{output}: {plural(len(texts), 'vector')} of {plural(width, 'number')}")
