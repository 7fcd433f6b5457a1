"""Progress bars on standard error for many requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from woolly.errors import RequestError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from woolly.engine.request import Request

_SECONDS = 0.2  # between two lines of a notebook


@contextmanager
def progress_bar(n_requests: int) -> Iterator[Callable[[Request], None]]:
    """Yield a callback for finished requests."""
    n_tokens, start = 0, time.monotonic()
    with _bar(n_requests, "{task.fields[rate]:.0f} tokens/s") as show:
        n_done = 0

        def ended(request: Request) -> None:
            nonlocal n_done, n_tokens
            n_done += 1
            n_tokens += len(request.output)
            elapsed = time.monotonic() - start
            show(n_done, n_tokens / elapsed if elapsed else 0.0)

        yield ended


@contextmanager
def texts_bar(n_texts: int) -> Iterator[Callable[[int], None]]:
    """Yield a callback for the number of finished texts. Any thread may call it."""
    with _bar(n_texts) as show:
        yield lambda n_done: show(n_done, 0.0)


@contextmanager
def _bar(n: int, rate: str = "") -> Iterator[Callable[[int, float], None]]:
    """Yield a callback for the number of finished items and a rate."""
    # Imported late: most calls show no progress bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if console.is_jupyter:  # where rich needs ipywidgets
        yield _notebook_line(console.file, n, has_rate=bool(rate))
        console.file.write("\n")
        return
    columns: list[ProgressColumn] = [BarColumn(), MofNCompleteColumn()]
    columns += [TextColumn(rate)] if rate else []
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("items", total=n, rate=0.0)
        yield lambda n_done, its_rate: bar.update(task, completed=n_done, rate=its_rate)


def _notebook_line(file: IO[str], n: int, *, has_rate: bool) -> Callable[[int, float], None]:
    """Return a callback that writes one line of text again and again."""
    last = 0.0

    def show(n_done: int, rate: float) -> None:
        nonlocal last
        if n_done < n and time.monotonic() - last < _SECONDS:
            return
        last = time.monotonic()
        filled = 30 * n_done // max(1, n)
        line = f"\r{'█' * filled}{'░' * (30 - filled)} {n_done}/{n}" + (f" {rate:.0f} tokens/s" if has_rate else "")
        file.write(line)
        file.flush()

    return show


def check_progress(stream: bool, progress: bool) -> None:
    """Raise RequestError if a progress bar is requested for a stream."""
    if stream and progress:
        raise RequestError("progress and stream cannot be combined; remove one of them")
