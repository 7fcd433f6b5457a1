"""Events of a streamed answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from woolly.chat.tools.tool import ToolCall

Reason = Literal["stop", "length", "tool_calls", "cancelled", "error"]


@dataclass(frozen=True)
class Reasoning:
    """Chunk of reasoning before the answer."""

    text: str


@dataclass(frozen=True)
class Text:
    """Chunk of the answer's text."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """Start of a call, whose arguments follow."""

    index: int  # number of the call in the answer
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """Chunk of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True)
class Usage:
    """Token counts of one answer."""

    n_prompt: int
    n_cached: int  # cached tokens of the prompt
    n_answer: int


@dataclass(frozen=True)
class Finished:
    """End of an answer, always the last event."""

    reason: Reason
    usage: Usage
    stop: str | int | None = None  # stop string or token that ended the answer


Event = Reasoning | Text | CallStart | CallArguments | Finished


@dataclass(frozen=True)
class Parts:
    """Complete answer, with the events of each kind joined."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def gather(events: Iterable[Event]) -> Parts:
    """Join the events of one answer."""
    text: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, Text):
            text.append(event.text)
        elif isinstance(event, Reasoning):
            reasoning.append(event.text)
        elif isinstance(event, CallStart):
            starts.append(event)
            arguments.append([])
        elif isinstance(event, CallArguments):
            arguments[event.index].append(event.text)
    calls = (ToolCall(s.id, s.name, "".join(a)) for s, a in zip(starts, arguments, strict=True))
    return Parts("".join(text), "".join(reasoning), tuple(calls))
