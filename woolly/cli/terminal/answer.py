"""Output of an answer while it is generated, with timing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from woolly.engine import Chunk, Completion
    from woolly.templates import ChatTemplate

# Message for an empty answer if `is_template_missing`.
EMPTY = "the answer is empty: this file has no chat template, so ChatML is assumed, and it is probably a base model"

_REDRAW_SECONDS = 0.08


def is_template_missing(template: ChatTemplate, text: str) -> bool:
    """True if an answer is empty, probably because the file has no chat template."""
    return template.is_fallback and not text.strip()


@dataclass
class Timing:
    """Arrival times of the first and last chunk of an answer, in seconds of the monotonic clock."""

    start: float
    first: float | None = None
    end: float | None = None

    @classmethod
    def begin(cls) -> Timing:
        """Return a clock that starts now."""
        return cls(time.perf_counter())

    def tick(self) -> None:
        """Record the arrival of a chunk."""
        self.end = time.perf_counter()
        self.first = self.first or self.end

    def facts(self, answer: Completion) -> dict[str, Any]:
        """Return tokens and rates for `--json` and `/stats`."""
        n_prompt, n_cached, n_answer = answer.n_prompt_tokens, answer.n_cached_tokens, len(answer.token_ids)
        first = (self.first or self.start) - self.start
        rest = (self.end or self.start) - (self.first or self.start)
        drafted = {"drafted_tokens": answer.n_drafted_tokens, "accepted_tokens": answer.n_accepted_tokens}
        return {
            "prompt_tokens": n_prompt,
            "cached_tokens": n_cached,
            "answer_tokens": n_answer,
            "first_token_s": round(first, 3),
            "prompt_tokens_per_second": round((n_prompt - n_cached) / first, 1) if first > 0 else None,
            "answer_tokens_per_second": round((n_answer - 1) / rest, 1) if n_answer > 1 and rest > 0 else None,
            **(drafted if answer.n_drafted_tokens else {}),
            **({"draft_note": answer.draft_note} if answer.draft_note else {}),
            **({"cache_note": answer.cache_note} if answer.cache_note else {}),
        }


def stats_of(facts: dict[str, Any]) -> str:
    """Return the values of `Timing.facts` as readable lines."""
    read, rate = facts["prompt_tokens_per_second"], facts["answer_tokens_per_second"]
    drafted = facts.get("drafted_tokens", 0)
    return (
        f"prompt   {plural(facts['prompt_tokens'], 'token')}, {facts['cached_tokens']} of them from the cache"
        + (f" ({note})" if (note := facts.get("cache_note", "").partition(", ")[2]) else "")
        + f", first token after {facts['first_token_s']:.2f} s"
        + (f", {read:.1f} tokens/s" if read else "")
        + f"\nanswer   {plural(facts['answer_tokens'], 'token')}"
        + (f", {rate:.1f} tokens/s" if rate else "")
        + (f", {facts['accepted_tokens']} of {drafted} guessed tokens were right" if drafted else "")
        + (f"\nguesses  {note}" if (note := facts.get("draft_note", "")) else "")
    )


def show_plain(chunks: Iterable[Chunk], timing: Timing, *, kept: list[str] | None = None) -> str | None:
    """Write chunks to standard output as they arrive, then a newline, also after Ctrl-C. Return the finish reason.

    The text is appended to `kept`.
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
    """Last lines of a growing block, as many as fit the screen."""

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
    """Render chunks as Markdown. Return the finish reason.

    The text is appended to `kept`, also after Ctrl-C. A complete block is printed once and may scroll away. Only the
    last block is redrawn.
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
    """Return the complete blocks and the rest, which may still grow. Splits at the last empty line outside of code."""
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
