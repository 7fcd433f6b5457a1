"""Reading what a person types: lines with editing and history, and several lines as one message."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Keyboard", "no_echo"]

_QUOTES = '"""'


class Keyboard:
    """Messages from standard input, one after another.

    A message goes on over lines between triple quotes, or after a backslash at a line's end.
    """

    def __init__(self, history: Path | None) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._history = history if self.is_terminal else None
        self._readline = _readline() if self.is_terminal else None
        if self._readline is not None and self._history is not None:
            with contextlib.suppress(OSError):
                self._readline.read_history_file(str(self._history))
            self._readline.set_history_length(1000)

    def read(self, prompt: str, more: str) -> str | None:
        """The next message; None at the end of input, which also ends a message. Ctrl-C is passed on."""
        lines: list[str] = []
        try:
            lines.append(self._line(prompt))
            text = lines[0].lstrip()
            if text.startswith(_QUOTES):
                lines[0] = text[len(_QUOTES) :]
                while not lines[-1].rstrip().endswith(_QUOTES):
                    lines.append(self._line(more))
                lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
                return "\n".join(lines).strip("\n")
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(self._line(more))
        except EOFError:
            if not lines:
                return None
        return "\n".join(lines)

    def close(self) -> None:
        """Keep the history, readable by its owner alone."""
        if self._readline is None or self._history is None:
            return
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY, 0o600))
            self._readline.write_history_file(str(self._history))

    def _line(self, prompt: str) -> str:
        if self.is_terminal:
            return input(prompt)
        line = "" if sys.stdin is None else sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """What is typed meanwhile is kept for the next line and not shown: the echo of Ctrl-C would move what is drawn."""
    # The console of Windows shows what is typed when it is read, and Ctrl-C not at all.
    if sys.stdin is None or not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import termios

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)


def _readline() -> Any:
    """Python's module for line editing, which not every system has."""
    try:
        import readline
    except ImportError:
        return None
    return readline
