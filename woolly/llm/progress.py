"""Progress bars on standard error for many requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.request import Request


@contextmanager
def progress_bar(n_requests: int) -> Iterator[Callable[[Request], None]]:
    """Yield a callback for finished requests."""
    # Imported late: most calls show no progress bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=n_requests, rate=0.0)
        n_tokens = 0

        def ended(request: Request) -> None:
            nonlocal n_tokens
            n_tokens += len(request.output)
            elapsed = bar.tasks[0].elapsed
            bar.update(task, advance=1, rate=n_tokens / elapsed if elapsed else 0.0)

        yield ended


@contextmanager
def texts_bar(n_texts: int) -> Iterator[Callable[[int], None]]:
    """Yield a callback for the number of finished texts. Any thread may call it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("texts", total=n_texts)
        yield lambda n_done: bar.update(task, completed=n_done)


def check_progress(stream: bool, progress: bool) -> None:
    """Raise RequestError if a progress bar is requested for a stream."""
    if stream and progress:
        raise RequestError("progress and stream cannot be combined; remove one of them")
