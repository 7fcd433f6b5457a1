"""Keyboard input of messages, with editing, history, completion and multi-line messages."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_QUOTES = '"""'
_MAX_ENTRIES = 1000

Complete = Callable[[str], list[str]]  # line before the cursor to completions of its last word


class Keyboard:
    """Reads messages from standard input.

    Triple quotes enclose a message of several lines, and a backslash at the end of a line continues it. On a terminal,
    pasted lines are one message. prompt_toolkit edits the line, because Python's readline is libedit in many builds,
    does not exist on Windows, and does not support bracketed paste.
    """

    def __init__(self, history: Path | None, complete: Complete | None = None) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._entries = _Entries(history if self.is_terminal else None)
        self._session = _session(self._entries.read(), complete) if self.is_terminal else None

    def read(self, prompt: str, more: str, note: str = "") -> str | None:
        """Return the next message, which the end of input also ends, or None. Ctrl-C raises KeyboardInterrupt.

        `more` is the prompt of a message's further lines, and `note` is shown at the right edge of a terminal.
        """
        if self._session is None:
            return _piped()
        try:
            text = self._session.prompt(prompt, prompt_continuation=more, rprompt=[("class:note", note)])
        except EOFError:
            return None
        self._entries.add(text)
        if text.count(_QUOTES) == 2 and text.strip().startswith(_QUOTES) and text.strip().endswith(_QUOTES):
            return text.strip().removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
        return text

    def answer(self, question: str) -> str:
        """Return the user's reply to a question, without completion or history, or "" at the end of input."""
        if self._session is None:
            return ""
        from prompt_toolkit import prompt

        try:
            return prompt(question).strip()
        except (EOFError, KeyboardInterrupt):
            return ""

    def close(self) -> None:
        """Save the history."""
        self._entries.save()


class _Entries:
    """Input history in a file that only its owner can read. An entry is a line of JSON, or a plain line."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: list[str] = []

    def read(self) -> list[str]:
        """Return all entries, oldest first."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
                self._entries = [_entry(line) for line in lines if line]
        return list(self._entries)

    def add(self, text: str) -> None:
        """Add an entry."""
        if text.strip() and self._entries[-1:] != [text]:
            self._entries.append(text)

    def save(self) -> None:
        """Write the last entries. Errors are ignored if the folder is not writable."""
        if self._path is None:
            return
        text = "".join(f"{json.dumps(entry)}\n" for entry in self._entries[-_MAX_ENTRIES:])
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            self._path.write_text(text, encoding="utf-8")


def _entry(line: str) -> str:
    with contextlib.suppress(ValueError):
        if isinstance(entry := json.loads(line), str):
            return entry
    return line


def _is_open(text: str) -> bool:
    """True while triple quotes are open."""
    return text.lstrip().startswith(_QUOTES) and text.count(_QUOTES) % 2 == 1


def _session(entries: list[str], complete: Complete | None) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.shortcuts import CompleteStyle
    from prompt_toolkit.styles import Style

    class Words(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            line = document.text_before_cursor
            for word in complete(line) if complete else ():
                yield Completion(word, start_position=-len(line.rpartition(" ")[2]))

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.insert_text("\n")
        elif buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=InMemoryHistory(entries),
        completer=Words(),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        enable_open_in_editor=True,
        key_bindings=keys,
        style=Style.from_dict({"note": "fg:ansibrightblack"}),
    )


def _piped() -> str | None:
    """Return the next message from a pipe or file."""
    lines: list[str] = []
    try:
        lines.append(_line())
        text = lines[0].lstrip()
        if text.startswith(_QUOTES):
            lines[0] = text[len(_QUOTES) :]
            while not lines[-1].rstrip().endswith(_QUOTES):
                lines.append(_line())
            lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
            return "\n".join(lines).strip("\n")
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(_line())
    except EOFError:
        if not lines:
            return None
    return "\n".join(lines)


def _line() -> str:
    line = "" if sys.stdin is None else sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """Turn off the echo of keys, because Ctrl-C would move the output. The next line still gets the typed text."""
    # The Windows console only echoes while reading, and never Ctrl-C.
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
