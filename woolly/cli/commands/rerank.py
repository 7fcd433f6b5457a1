"""`woolly rerank`: sorts documents by relevance to a query."""

from __future__ import annotations

import json
from pathlib import Path

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, BACKEND, DEVICE, GPU_LAYERS, MODEL, NAMED, THREADS, one_model
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.text_io.sources import read_texts


@command(
    MODEL,
    Argument("query", "QUERY", "The query."),
    Argument("texts", "DOCUMENT...", "The documents.", list, shown="those of -d and -f"),
    NAMED,
    Option("--document -d", "Document; may be repeated.", list, to="documents"),
    Option(
        "--file -f", "File with a document per line, or .jsonl.", Path, shown="standard input, if no document is given"
    ),
    Option("--key", "Key of the text in the objects of a .jsonl file.", default="text"),
    Option("--top -n", "Print only the best N.", int, shown="all"),
    Option("--raw", "Print the model's raw scores instead of scores from 0 to 1.", bool, default=False),
    Option("--truncate", "Truncate documents that are too long; by default they are an error.", bool, default=False),
    THREADS,
    BACKEND,
    DEVICE,
    GPU_LAYERS,
    AS_JSON,
)
def rerank(
    model: str | None,
    query: str | None,
    texts: tuple[str, ...],
    named: str | None,
    documents: tuple[str, ...],
    file: Path | None,
    key: str,
    top: int | None,
    raw: bool,
    truncate: bool,
    threads: int | None,
    backend: str | None,
    device: str | None,
    gpu_layers: str | None,
    as_json: bool,
) -> None:
    """Print documents sorted by relevance to a query, best first: score and document."""
    words = [word for word in (model, query, *texts) if word is not None]
    if words and named is None:
        named = words.pop(0)
    elif words and words[0] == named:
        words.pop(0)
    name = one_model("rerank", None, named)
    if not words:
        raise UsageError('missing query: woolly rerank MODEL "what do sheep eat?" -f documents.txt')
    query, *given = words
    given += documents
    if top is not None and top < 1:
        raise UsageError(f"--top is {top}; expected at least 1")
    if file is not None or not given:
        given += read_texts("--file", file, key)
    if not given:
        raise UsageError("there are no documents; pass them after the query, with -d, or one per line of --file")
    from woolly.llm import LLM

    with LLM(name, threads=threads, backend=backend or "auto", device=device, gpu_layers=gpu_layers) as llm:
        scores = llm.rerank(query, given, raw=raw, truncate=truncate)
    order = sorted(range(len(given)), key=lambda index: -scores[index])[:top]
    if as_json:
        rows = [{"index": i, "score": float(scores[i]), "text": given[i]} for i in order]
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for i in order:
        click.echo(f"{scores[i]:8.4f}  {given[i]}")
