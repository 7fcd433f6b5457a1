"""Messages and progress bars on standard error. No bars are drawn if it is not a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

# Columns of a short bar: done and total, rate and time left.
_FIGURES = 48

# Control characters except newline and tab, so that a model, a file or a server cannot control the terminal.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

Report = Callable[[int, int], None]  # done, total


def stderr_console() -> Console:
    """Return the console of standard error, for everything except results. No markup: names contain brackets."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False)


def visible(text: str) -> str:
    """Return the text with control characters escaped."""
    return text.translate(_CONTROL)


def print_status(text: str, *, dim: bool = False) -> None:
    """Write a message to standard error, with control characters escaped: it may quote a file or a server.

    On a terminal, it is wrapped between words.
    """
    text = visible(text)
    if sys.stderr is not None and sys.stderr.isatty():
        import shutil

        width = shutil.get_terminal_size().columns - 1
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    click.echo(click.style(text, dim=True) if dim else text, err=True)


def _wrapped(line: str, width: int) -> str:
    """Wrap a line. Further lines begin under the second column of a list, if any."""
    column = re.match(r"\s*(\S+ )*\S*  +", line)
    indent = " " * len(column[0]) if column is not None and len(column[0]) < width / 2 else ""
    import textwrap

    # Long words are paths and URLs, which must stay intact for copying.
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )


@contextmanager
def bytes_bar(description: str, console: Console | None = None) -> Iterator[Report | None]:
    """Yield the callback of a byte progress bar, drawn from the first report on, or None without a terminal."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(description, (DownloadColumn(), TransferSpeedColumn()), console) as report:
        yield report


@contextmanager
def steps_bar(description: str, unit: str, console: Console | None = None) -> Iterator[Report | None]:
    """Yield the callback of a progress bar for steps. `unit` is the plural name of the steps."""
    from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f} {unit}/s" if task.speed else "")

    with _bar(description, (MofNCompleteColumn(), TextColumn(unit), Rate()), console) as report:
        yield report


@contextmanager
def _bar(description: str, columns: tuple[object, ...], console: Console | None) -> Iterator[Report | None]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = console or stderr_console()
    if not console.is_terminal:
        yield None
        return
    # The terminal echoes ^C after the bar. If this wrapped to another line, the bar would not be erased.
    console.width -= len("^C") + 1
    described = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, console.width - _FIGURES))
    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=described),
        BarColumn(bar_width=40 if console.width > 100 else 10),
        *columns,  # type: ignore[arg-type]
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(description, total=None)

    def report(done: int, total: int) -> None:
        bar.start()  # not earlier, so that finished work draws no bar
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()
