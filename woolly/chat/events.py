"""Events: what an answer is made of, in the order in which it arrives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from woolly.chat.tools.tool import ToolCall

Reason = Literal["stop", "length", "tool_calls", "cancelled", "error"]


@dataclass(frozen=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Text:
    """More text of the answer itself."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins: its name is known, its arguments follow."""

    index: int  # among the calls of one answer
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More characters of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    n_prompt: int
    n_cached: int  # tokens of the prompt that the cache held
    n_answer: int


@dataclass(frozen=True)
class Finished:
    """The end of an answer: the last event."""

    reason: Reason
    usage: Usage
    stop: str | int | None = None  # the stop string or token that ended it


Event = Reasoning | Text | CallStart | CallArguments | Finished


@dataclass(frozen=True)
class Parts:
    """The events of one answer, joined by kind."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def gather(events: Iterable[Event]) -> Parts:
    """Joins the events of one answer."""
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
