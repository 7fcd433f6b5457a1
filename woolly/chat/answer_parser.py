"""Streaming parser that turns the text of an answer into events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.chat.events import Event, Finished, Reason, Reasoning, Text, Usage

if TYPE_CHECKING:
    from woolly.chat.channels import ChannelSplitter
    from woolly.chat.reasoning import ReasoningSplitter, Split
    from woolly.chat.tools.parser import ToolParser


class AnswerParser:
    """Splits reasoning and calls from the text. The events do not depend on how the text is divided into chunks."""

    def __init__(
        self, splitter: ReasoningSplitter | ChannelSplitter, parser: ToolParser | None, opened: str = ""
    ) -> None:
        """Without a `parser`, calls are text. `opened` is the part of a call's marker that the prompt ends with."""
        self._splitter = splitter
        self._parser = parser
        self._opened = opened

    def push(self, text: str) -> list[Event]:
        """Return the events that the next chunk of text completes."""
        return self._read(self._splitter.push(text))

    def finish(self, reason: Reason, usage: Usage, stop: str | int | None = None) -> list[Event]:
        """Return the events of buffered text and the final event. `reason` is the engine's finish reason."""
        events = self._read(self._splitter.finish())
        if self._parser is not None:
            events += self._parser.finish()
            if self._parser.n_calls and reason == "stop":
                reason = "tool_calls"
        return [*events, Finished(reason, usage, stop)]

    def _read(self, split: Split) -> list[Event]:
        events: list[Event] = [Reasoning(split.reasoning)] if split.reasoning else []
        if split.text:
            if self._parser is not None and self._opened and not self._splitter.has_header:
                events += self._parser.push(self._opened)
            self._opened = ""
            events += [Text(split.text)] if self._parser is None else self._parser.push(split.text)
        return events
