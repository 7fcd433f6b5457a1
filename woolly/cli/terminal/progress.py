"""Standard error: messages, and progress bars with rate and time left; no bars if it is not a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

# Columns of a short bar, done and total, rate and time left.
_FIGURES = 48

Report = Callable[[int, int], None]  # done, total


def stderr_console() -> Console:
    """The console of standard error, for everything but the result. Without markup: names are full of brackets."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False)


def print_status(text: str, *, dim: bool = False) -> None:
    """Write a message to standard error: wrapped between words on a terminal, as it is otherwise."""
    if sys.stderr is not None and sys.stderr.isatty():
        import shutil

        width = shutil.get_terminal_size().columns - 1
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    click.echo(click.style(text, dim=True) if dim else text, err=True)


def _wrapped(line: str, width: int) -> str:
    """The line within a width; its further lines begin under the second column of a list, if it has one."""
    column = re.match(r"\s*(\S+ )*\S*  +", line)
    indent = " " * len(column[0]) if column is not None and len(column[0]) < width / 2 else ""
    import textwrap

    # Long words are paths and addresses, which are copied whole.
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )


@contextmanager
def bytes_bar(description: str, console: Console | None = None) -> Iterator[Report | None]:
    """A bar of bytes and their rate, drawn from the first report on; None if there is no terminal."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(description, (DownloadColumn(), TransferSpeedColumn()), console) as report:
        yield report


@contextmanager
def steps_bar(description: str, unit: str, console: Console | None = None) -> Iterator[Report | None]:
    """A bar of steps; `unit` is their name in the plural."""
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
    # The terminal echoes ^C behind the bar: if that wrapped to another line, the bar would not be erased.
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
        bar.start()  # not earlier: finished work draws no bar
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()
