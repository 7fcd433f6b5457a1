"""Showing an answer while it is made, and what it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from woolly.engine import Chunk, Sequence

__all__ = ["Timing", "collect", "show_markdown", "show_plain", "visible"]

# Control characters other than newline and tab: a model must not drive the terminal.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

_REDRAW_SECONDS = 0.08


def visible(text: str) -> str:
    """Control characters written out."""
    return text.translate(_CONTROL)


@dataclass
class Timing:
    """When the parts of an answer came, in seconds of the monotonic clock."""

    start: float
    first: float | None = None
    end: float | None = None

    @classmethod
    def begin(cls) -> Timing:
        """From here."""
        return cls(time.perf_counter())

    def tick(self) -> None:
        """A chunk has come."""
        self.end = time.perf_counter()
        self.first = self.first or self.end

    def facts(self, request: Sequence) -> dict[str, Any]:
        """Tokens and rates, for `--json` and `/stats`."""
        n_prompt, n_answer = len(request.prompt), len(request.output)
        n_cached = 0 if request.prefix is None else request.prefix.hit_tokens
        first = (self.first or self.start) - self.start
        rest = (self.end or self.start) - (self.first or self.start)
        return {
            "prompt_tokens": n_prompt,
            "cached_tokens": n_cached,
            "answer_tokens": n_answer,
            "first_token_s": round(first, 3),
            "prompt_tokens_per_second": round((n_prompt - n_cached) / first, 1) if first > 0 else None,
            "answer_tokens_per_second": round((n_answer - 1) / rest, 1) if n_answer > 1 and rest > 0 else None,
        }


def collect(chunks: Iterable[Chunk], timing: Timing) -> tuple[str, str | None]:
    """The text of all chunks, and why it ended."""
    text, ended = "", None
    for chunk in chunks:
        timing.tick()
        text += chunk.text
        ended = chunk.finish_reason
    return text, ended


def show_plain(chunks: Iterable[Chunk], timing: Timing, *, kept: list[str] | None = None) -> str | None:
    """Write chunks to standard output as they come; gives why it ended. Ends with a newline, also after Ctrl-C.

    `kept` collects the text.
    """
    out = sys.stdout
    is_terminal = out.isatty()
    ended = None
    try:
        for chunk in chunks:
            timing.tick()
            if kept is not None:
                kept.append(chunk.text)
            out.write(visible(chunk.text) if is_terminal else chunk.text)
            out.flush()
            ended = chunk.finish_reason
    finally:
        out.write("\n")
        out.flush()
    return ended


class _Tail:
    """The last lines of a block that is still growing: as many as the screen has."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.markdown import Markdown
        from rich.segment import Segment

        lines = console.render_lines(Markdown(self.text), options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def show_markdown(chunks: Iterable[Chunk], timing: Timing, console: Console, kept: list[str]) -> str | None:
    """Draw chunks as Markdown; gives why it ended. `kept` collects the text, also where Ctrl-C ends it.

    Blocks that are complete are printed for good and scroll away; only the last one is drawn again and again.
    """
    from rich.live import Live
    from rich.markdown import Markdown

    ended, open_text, drawn = None, "", 0.0
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for chunk in chunks:
                timing.tick()
                kept.append(chunk.text)
                ended = chunk.finish_reason
                done, open_text = _split(open_text + visible(chunk.text))
                if done:
                    live.update("")
                    console.print(Markdown(done))
                    console.print()
                if done or time.perf_counter() - drawn > _REDRAW_SECONDS:
                    live.update(_Tail(open_text), refresh=True)
                    drawn = time.perf_counter()
    finally:
        if open_text.strip():
            console.print(Markdown(open_text))
    return ended


def _split(text: str) -> tuple[str, str]:
    """Whole blocks, and what may still grow: cut at the last empty line outside of fenced code."""
    cut, position, fence = 0, 0, ""
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence) and not stripped.strip(fence[0]):
                fence = ""
        elif stripped.startswith(("```", "~~~")):
            fence = stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]
        elif not stripped and line.endswith("\n"):
            cut = position + len(line)
        position += len(line)
    return text[:cut].strip("\n"), text[cut:]
