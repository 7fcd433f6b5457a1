"""Progress bars on standard error: rate and time left, and nothing where it is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bytes_bar", "chatter", "steps_bar", "tell"]

# Columns of a short bar, done and total, rate and time left.
_FIGURES = 48

Report = Callable[[int, int], None]  # done, total


def chatter() -> Console:
    """Standard error: for all that is not the result. Names are full of brackets, so there is no markup."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False)


def tell(text: str, style: str | None = None) -> None:
    """Say something on standard error: broken between words on a terminal, in one piece elsewhere."""
    console = chatter()
    console.print(text, style=style, soft_wrap=not console.is_terminal)


@contextmanager
def bytes_bar(description: str, console: Console | None = None) -> Iterator[Report | None]:
    """A bar of bytes with their rate; None where there is no terminal. It appears with the first report."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(description, (DownloadColumn(), TransferSpeedColumn()), console) as report:
        yield report


@contextmanager
def steps_bar(description: str, unit: str, console: Console | None = None) -> Iterator[Report | None]:
    """A bar of whole steps, `unit` naming them in the plural."""
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

    console = console or chatter()
    if not console.is_terminal:
        yield None
        return
    # The terminal writes ^C behind the bar: on a line of its own, the bar would not be wiped away.
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
        bar.start()  # only here: work that is done already draws no bar
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()
