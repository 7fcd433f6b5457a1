"""`woolly eval`: accuracy of a model on a file of questions, also compared with another model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, BACKEND, DEVICE, MODEL, NAMED, THREADS, complete_model, model_and_text
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.terminal.files import read_utf8
from woolly.cli.terminal.progress import print_status, steps_bar
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.measure.evaluation.comparison import Accuracy, Comparison
    from woolly.measure.evaluation.questions import Row
    from woolly.measure.evaluation.runner import Outcome


@command(
    MODEL,
    Argument(
        "questions",
        "FILE",
        "Rows of JSON lines: question, choices and answer, or prompt and answer; - for standard input.",
    ),
    NAMED,
    Option(
        "--against",
        "Compare with this model on the same rows: McNemar's test and a bootstrap interval.",
        metavar="OTHER",
        complete=complete_model,
    ),
    Option("--max-tokens -n", "Maximum tokens of a generated answer.", int, default=256),
    Option("--limit", "Only the first rows of the file.", int, shown="all", metavar="N"),
    Option(
        "--output -o",
        "Folder of the results, one line per row. An interrupted run resumes with the same command.",
        Path,
        shown="FILE.results",
        to="folder",
        metavar="DIR",
    ),
    THREADS,
    BACKEND,
    DEVICE,
    AS_JSON,
)
def eval(
    model: str | None,
    questions: str | None,
    named: str | None,
    against: str | None,
    max_tokens: int,
    limit: int | None,
    folder: Path | None,
    threads: int | None,
    backend: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Evaluate a model on questions with known answers: choices by log-likelihood, others by generation.

    A row is {"question", "choices", "answer"} or {"prompt", "answer", "match"}, where match is exact, regex, number or
    json. Answers are generated at temperature 0, so a second run has the same results.
    """
    from woolly.measure.evaluation.comparison import accuracy, compare
    from woolly.measure.evaluation.questions import read_rows, rows_of

    example = "missing file of questions: woolly eval smollm2 questions.jsonl"
    model, questions = model_and_text("eval", model, questions, named, example)
    for name, value in (("max_tokens", max_tokens), ("limit", limit)):
        if value is not None and value < 1:
            raise RequestError(f"{name} is {value}; expected at least 1", field=name)
    is_piped = questions == "-"
    path = Path("piped" if is_piped else questions)
    rows = rows_of(read_utf8("-"), "standard input") if is_piped else read_rows(path)
    rows = rows[:limit]
    folder = folder or path.with_name(path.name + ".results")
    options = {"threads": threads, "backend": backend or "auto", "device": device}
    outcomes = [_run(name, rows, folder, max_tokens, options) for name in (model, against) if name is not None]
    right = [[outcome.right for outcome in own] for own in outcomes]
    accuracies = [accuracy(own) for own in right]
    difference = compare(right[0], right[1]) if len(right) > 1 else None
    by_length = [_by_length(own) for own in outcomes]
    if as_json:
        facts = [
            {"model": name, **asdict(own), "share": own.share, "share_by_length": length}
            for name, own, length in zip((model, against), accuracies, by_length, strict=False)
        ]
        results = str(folder)
        compared = None if difference is None else asdict(difference)
        click.echo(
            json.dumps({"rows": len(rows), "results": results, "models": facts, "comparison": compared}, indent=2)
        )
        return
    _print([name for name in (model, against) if name is not None], accuracies, by_length, difference)
    print_status(f"{folder}: every answer", dim=True)


def _run(name: str, rows: list[Row], folder: Path, max_tokens: int, options: dict[str, Any]) -> list[Outcome]:
    from woolly.llm import LLM
    from woolly.measure.evaluation.runner import run_rows
    from woolly.store import resolve
    from woolly.store.file_digest import digest_of

    path = resolve(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{folder} cannot be created ({error.strerror or error}); choose another folder") from None
    with LLM(path, **options) as llm, steps_bar(path.stem, "rows") as report:
        of = f"{digest_of([path])[:16]} max_tokens={max_tokens}"
        return run_rows(llm, rows, folder / f"{path.stem}-{of[:8]}.jsonl", of, max_tokens, report)


def _by_length(outcomes: list[Outcome]) -> float | None:
    """Return the share of correct choices if log-likelihoods are divided by the bytes of a choice."""
    known = [outcome.right_by_length for outcome in outcomes if outcome.right_by_length is not None]
    return sum(known) / len(known) if known else None


def _print(
    names: list[str], accuracies: list[Accuracy], by_length: list[float | None], difference: Comparison | None
) -> None:
    for name, own, length in zip(names, accuracies, by_length, strict=True):
        click.echo(
            f"{name}  {own.share:.1%} right ({own.right} of {own.n}), 95 % CI {own.low:.1%} to {own.high:.1%}"
            + ("" if length is None else f"; choices by length {length:.1%}")
        )
    if difference is not None:
        verdict = "no proof of a difference" if difference.p_value >= 0.05 else "a difference"
        click.echo(
            f"difference  {difference.difference:+.1%}, 95 % CI {difference.low:+.1%} to {difference.high:+.1%};"
            f" only {names[0]} right: {difference.only_first}, only {names[1]} right: {difference.only_second};"
            f" p = {difference.p_value:.3g}: {verdict}"
        )
