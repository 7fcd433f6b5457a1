"""Streaming parser that turns the text of an answer into events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from woolly.chat.events import CallArguments, CallStart, Event, Finished, Reason, Reasoning, Text, Usage

if TYPE_CHECKING:
    from woolly.chat.channels import ChannelSplitter
    from woolly.chat.reasoning import ReasoningSplitter, Split
    from woolly.chat.tools.parser import ToolParser


class ThoughtParser:
    """Finds calls at the end of reasoning that the model has not ended. A call followed by other text is reasoning."""

    def __init__(self, make_parser: Callable[[], ToolParser]) -> None:
        self._make_parser = make_parser
        self._parser = make_parser()
        self._pending = ""  # characters that are not returned yet
        self._calls: list[Event] = []

    @property
    def is_in_call(self) -> bool:
        """True within the arguments of a call, which may contain the end marker of reasoning."""
        return self._parser.is_in_call

    def push(self, text: str) -> list[Event]:
        """Return the reasoning that the next characters complete."""
        self._pending += text
        shown = ""
        for event in self._parser.push(text):
            if not isinstance(event, Text):
                self._calls.append(event)
            elif self._calls:
                return [Reasoning(shown + self._restart())]
            else:
                shown += event.text
        self._pending = self._pending[len(shown) :]
        return [Reasoning(shown)] if shown else []

    def end(self) -> list[Event]:
        """Return the reasoning at its end marker. Calls before the marker are reasoning."""
        rest = self._restart().rstrip()
        return [Reasoning(rest)] if rest else []

    def finish(self) -> list[Event]:
        """Return the calls with which the answer ends, or the rest of the reasoning."""
        events = self._parser.finish()
        if not self._calls and not any(isinstance(event, CallStart) for event in events):
            return self.end()
        calls: list[Event] = [event for event in (*self._calls, *events) if not isinstance(event, Text)]
        self._restart()
        return calls

    def _restart(self) -> str:
        """Return the pending characters, and expect calls after them."""
        pending, self._pending = self._pending, ""
        self._calls = []
        self._parser = self._make_parser()
        return pending


class AnswerParser:
    """Splits reasoning and calls from the text. The events do not depend on how the text is divided into chunks."""

    def __init__(
        self,
        splitter: ReasoningSplitter | ChannelSplitter,
        parser: ToolParser | None,
        opened: str = "",
        thoughts: ThoughtParser | None = None,
    ) -> None:
        """Without a `parser`, calls are text. `opened` is the part of a call's marker that the prompt ends with."""
        self._splitter = splitter
        self._parser = parser
        self._opened = opened
        self._thoughts = thoughts

    def push(self, text: str) -> list[Event]:
        """Return the events that the next chunk of text completes."""
        events: list[Event] = []
        for i, character in enumerate(text):
            if self._thoughts is None:
                events += self._read(self._splitter.push(text[i:]))
                break
            if self._thoughts.is_in_call:
                events += self._thoughts.push(character)
                continue
            was_inside = self._splitter.is_inside
            events += self._read(self._splitter.push(character))
            if was_inside and not self._splitter.is_inside:
                events += self._thoughts.end()
        return _joined(events)

    def finish(self, reason: Reason, usage: Usage, stop: str | int | None = None) -> list[Event]:
        """Return the events of buffered text and the final event. `reason` is the engine's finish reason."""
        events = self._read(self._splitter.finish())
        if self._thoughts is not None:
            events += self._thoughts.finish()
        if self._parser is not None:
            events += self._parser.finish()
        if reason == "stop" and (
            (self._parser is not None and self._parser.n_calls) or any(isinstance(event, CallStart) for event in events)
        ):
            reason = "tool_calls"
        return [*_joined(events), Finished(reason, usage, stop)]

    def _read(self, split: Split) -> list[Event]:
        events: list[Event] = []
        if split.reasoning:
            events += [Reasoning(split.reasoning)] if self._thoughts is None else self._thoughts.push(split.reasoning)
        if split.text:
            if self._parser is not None and self._splitter.has_header:
                self._parser.expect_header()
            if self._parser is not None and self._opened and not self._splitter.has_header:
                events += self._parser.push(self._opened)
            self._opened = ""
            events += [Text(split.text)] if self._parser is None else self._parser.push(split.text)
        return events


def _joined(events: list[Event]) -> list[Event]:
    """Return the events, with consecutive events of the same kind joined."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            joined[-1] = CallArguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined
