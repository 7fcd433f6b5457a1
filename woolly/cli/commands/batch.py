"""`woolly batch`: answers a file of requests."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import KV_TYPE, THREADS, WEIGHT_MEMORY, complete_model
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import print_status, steps_bar
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.serving.batches import Tally
    from woolly.serving.settings.table import Settings


@command(
    Argument("rows", "IN", "File of rows: .jsonl or .parquet.", required=True),
    Argument("output", "OUT", "File of answers: .jsonl or .parquet.", required=True),
    Option("--model -m", "A GGUF file or a model's name.", shown="the only one there is", complete=complete_model),
    Option("--errors", "File for failed rows.", Path, shown="OUT with .errors before the suffix"),
    Option("--parallel -np", "Rows that run at once.", int, default=16),
    Option("--ctx -c", "Context per row, in tokens.", int, shown="the model's, as memory allows"),
    Option(
        "--max-tokens -n", "Maximum tokens of an answer if the row does not set it.", int, shown="until the model stops"
    ),
    Option("--temp", "Temperature if the row does not set it.", float, default=0.8),
    THREADS,
    KV_TYPE,
    WEIGHT_MEMORY,
)
def batch(
    rows: str,
    output: str,
    model: str | None,
    errors: Path | None,
    parallel: int,
    ctx: int | None,
    max_tokens: int | None,
    temp: float,
    threads: int | None,
    kv_type: str | None,
    weight_memory: str | None,
) -> None:
    """Answer all requests in a file. Run the same command again to resume an interrupted run.

    A row is a line in OpenAI's batch format, a body with messages, prompt or input, or a text. Invalid rows are written
    to --errors and do not stop the run. A resumed run, also after kill -9, writes the same bytes as an uninterrupted
    one.
    """
    from woolly.serving.batches.files import check_input, check_output
    from woolly.serving.settings.table import Settings

    source, target = Path(rows), Path(output)
    check_input(source)
    check_output(target)
    failed = target.with_name(f"{target.stem}.errors{target.suffix}") if errors is None else errors
    check_output(failed)
    files = (("IN", source), ("OUT", target), ("--errors", failed))
    for (one, path), (other, second) in itertools.combinations(files, 2):
        if _is_same(path, second):
            raise UsageError(f"{one} and {other} are both {path}; name another {other}")
    settings = Settings(
        model=model,
        parallel=parallel,
        ctx_size=ctx,
        n_predict=-1 if max_tokens is None else max_tokens,
        temp=temp,
        threads=threads,
        cache_type_k=kv_type,
        weight_memory=weight_memory,
        request_timeout=0.0,
        webui=False,
    )
    try:
        tally = asyncio.run(_run(settings, source, target, failed))
    except OSError as error:
        raise RequestError(
            f"{error.filename or target} cannot be written ({error.strerror}); what was answered is kept in"
            f" {_journal(target)}: the same command goes on from there"
        ) from None
    except KeyboardInterrupt:
        print_status(
            f"woolly: stopped; what was answered is kept in {_journal(target)}: the same command goes on from there"
        )
        raise
    print_status(f"{target}: {plural(tally.n_good, 'answer')}")
    if tally.n_bad:
        print_status(f"{failed}: {plural(tally.n_bad, 'row')} failed")
    if tally.n_bad and not tally.n_good:
        raise click.exceptions.Exit(1)


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def _journal(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


async def _run(settings: Settings, source: Path, target: Path, failed: Path) -> Tally:
    from woolly.serving.batches import Job, Journal
    from woolly.serving.batches.files import count_rows, read_rows, write_lines
    from woolly.serving.errors import ApiError
    from woolly.serving.lifecycle.app import create_app

    n_rows = count_rows(source)
    app = create_app(settings)
    app.state.health.set("ready")
    journal = Journal(_journal(target))
    try:
        if settings.model is not None:
            await app.state.models.load(app.state.models.main)
        with steps_bar(source.name, "rows") as report:

            def on_row(tally: Tally) -> None:
                if report is not None:
                    report(min(tally.n_done, n_rows), n_rows)

            # Use the time of the input, so that a repeated run writes the same bytes.
            created = int(source.stat().st_mtime)
            job = Job(app, lambda: read_rows(source), journal, created=created, on_row=on_row)
            if job.tally.n_done:
                print_status(f"resuming after {plural(job.tally.n_done, 'row')}")
            tally = await job.run()
        write_lines(target, journal.lines(is_good=True))
        if tally.n_bad:
            write_lines(failed, journal.lines(is_good=False))
        else:
            failed.unlink(missing_ok=True)
        journal.remove()
        return tally
    except ApiError as error:
        raise RequestError(error.message) from None
    finally:
        journal.close()
        app.state.generator.stop()
        await app.state.models.close()
